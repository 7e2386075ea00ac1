"""Small tensors whose values are known keep them, in a twin on the CPU beside the meta tensor.

A twin belongs to a storage, so views share it. An operation whose operands are all known runs on
the twins as well; any other makes what it writes unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch.utils._pytree import tree_map

from virtualgpu.core.plan import nested
from virtualgpu.core.rules import tensors
from virtualgpu.pytorch.assumptions import Decisions
from virtualgpu.pytorch.stand_ins import STAND_INS
from virtualgpu.pytorch.unknown import FINITE, is_infinite
from virtualgpu.pytorch.visible import CPU, key_of

LIMIT = 2**20  # bytes
aten = torch.ops.aten
OVERWRITE = {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}
EMPTY = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default,
         aten.new_empty.default, aten.new_empty_strided.default}
# What they make does not depend on the values that they are given.
SHAPE_ONLY = {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default,
              aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
              aten.rand_like.default, aten.randn_like.default, *EMPTY}
# How truth values that are the same everywhere combine.
TRUTH = {aten.any.default: any, aten.any.dim: any, aten.any.dims: any,
         aten.all.default: all, aten.all.dim: all, aten.all.dims: all,
         aten.mul.Tensor: all, aten.logical_and.default: all, aten.bitwise_and.Tensor: all,
         aten.logical_or.default: any, aten.bitwise_or.Tensor: any,
         aten.logical_not.default: lambda values: not values[0],
         aten.bitwise_not.default: lambda values: not values[0]}
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default
RANDOM_FILL = {"aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_",
               "aten::exponential_", "aten::geometric_", "aten::log_normal_", "aten::cauchy_"}


class Values:
    """The twins of one GPU's tensors."""

    def __init__(self, limit: int, assumptions: Decisions) -> None:
        """limit: bytes of the largest storage that gets a twin."""
        self.limit, self.assumptions = limit, assumptions
        self.twins: dict[int, torch.UntypedStorage] = {}
        self.lost: set[int] = set()  # CPU storages that unknown values were written into
        self.alike: dict[int, bool] = {}  # large tensors, by storage: the truth value of them all
        self.seed, self.offset = 0, 0  # of the GPU's generator, which counts as CUDA's does

    def known(self, tensor: torch.Tensor) -> bool:
        return key_of(tensor) in self.twins

    def all_known(self, operands: Sequence[torch.Tensor]) -> bool:
        return all(self.known(item) if item.is_meta else key_of(item) not in self.lost
                   for item in operands)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor over the twin's memory: writing to it changes the value."""
        twin = self.twins[key_of(tensor)]
        return torch.empty(0, dtype=tensor.dtype).set_(
            twin, tensor.storage_offset(), tensor.shape, tensor.stride())

    def put(self, tensor: torch.Tensor, value: torch.Tensor | None) -> None:
        """Set the value of a tensor that covers its storage; None: it is unknown from now on."""
        key = key_of(tensor)
        if value is None:
            self.twins.pop(key, None)
            return
        storage = tensor.untyped_storage()
        if not 0 < storage.nbytes() <= self.limit:
            return
        fresh = key not in self.twins
        self.twins[key] = torch.UntypedStorage(storage.nbytes())
        self.value(tensor).copy_(value)
        if fresh:
            weakref.finalize(storage, self.twins.pop, key, None).atexit = False

    def forget(self, written: Sequence[torch.Tensor]) -> None:
        for item in written:
            if item.is_meta:
                self.twins.pop(key_of(item), None)
                self.alike.pop(key_of(item), None)

    def lose(self, tensor: torch.Tensor) -> None:
        """Take a CPU tensor for unknown from now on; whoever reads its memory finds NaN."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.lost:
            self.lost.add(key)
            weakref.finalize(storage, self.lost.discard, key).atexit = False
            whole = torch.empty(0, dtype=tensor.dtype)
            uninitialized(whole.set_(storage, 0, (storage.nbytes() // whole.element_size(),)))

    def regain(self, tensor: torch.Tensor) -> None:
        """Take a CPU tensor for known again, if it covers its storage: known values were
        written into it."""
        if tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
            self.lost.discard(key_of(tensor))

    def follow(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
               out: object) -> None:
        """Give an operation's results their values, after it has run on the virtual GPU.

        Args:
            func: the operation.
            args: its positional arguments, with tensors on meta.
            kwargs: its keyword arguments.
            out: what it returned on meta tensors.
        """
        if func is UNSCALE and not self.all_known(args[0]):
            self.assumptions.note_here("no gradient is infinite or NaN")
            self.forget(args[0])
            return
        written = written_by(func, args, kwargs)
        fresh = [item for item in nested(out)
                 if item.is_meta and not any(item is other for other in written)]
        if fresh and not written and (truth := self.truth(func, args)) is not None:
            self._fill(fresh[0], truth)
            return
        if any(item.untyped_storage().nbytes() > self.limit for item in (*written, *fresh)):
            self.forget(written)
            return
        name = func._schema.name
        whole = func in OVERWRITE or name in RANDOM_FILL
        if func not in SHAPE_ONLY:
            read = tensors((*args, *kwargs.values()))
            if whole:  # its old value does not matter
                read = [item for item in read if item is not written[0]]
            if not self.all_known(read):
                self.forget(written)
                return
        if whole and not self.known(written[0]) and not self._room(written[0]):
            return
        self._compute(func, args, kwargs, written, fresh)

    def truth(self, func: torch._ops.OpOverload, args: Sequence) -> bool | None:
        """Return the one truth value that an operation finds everywhere if unknown values are
        finite; None where it asks for something else.

        Args:
            func: the operation.
            args: its positional arguments.
        """
        if func in TRUTH and self.alike:
            values = [self.alike.get(key_of(item)) for item in tensors(args)]
            return None if None in values else TRUTH[func](values)
        answer = if_finite(func, args)
        if answer is None or self.all_known(tensors(args)):
            return None
        self.assumptions.note_here(FINITE)
        return answer

    def _fill(self, tensor: torch.Tensor, truth: bool) -> None:
        """Give a new tensor one truth value everywhere."""
        storage = tensor.untyped_storage()
        if storage.nbytes() <= self.limit:
            self.put(tensor, torch.full(tensor.shape, truth, dtype=tensor.dtype))
        else:
            self.alike[storage._cdata] = truth
            weakref.finalize(storage, self.alike.pop, storage._cdata, None).atexit = False

    def _room(self, target: torch.Tensor) -> bool:
        """Make a twin for a tensor that is about to be overwritten as a whole."""
        if target.numel() * target.element_size() != target.untyped_storage().nbytes():
            return False
        self.put(target, torch.zeros(target.shape, dtype=target.dtype))
        return True

    def _compute(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                 written: list[torch.Tensor], fresh: list[torch.Tensor]) -> None:
        def on_cpu(value: object) -> object:
            if isinstance(value, torch.Tensor):
                if not value.is_meta:
                    return value
                return self.value(value) if self.known(value) else torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype)
            return CPU if isinstance(value, torch.device) else value

        drawn = torch.Tag.nondeterministic_seeded in func.tags
        if drawn:
            before = torch.get_rng_state()
            torch.default_generator.manual_seed(self.seed + (self.offset << 24))
            self.offset += 4
        try:
            result = STAND_INS.get(func, func)(*tree_map(on_cpu, args),
                                               **tree_map(on_cpu, kwargs))
        except NotImplementedError:  # the CPU has no such kernel
            self.forget(written)
            return
        except RuntimeError as error:  # CUDA's kernel may be less strict
            reason = str(error).splitlines()[0]
            self.assumptions.note_here(f"the values of {func._schema.name} are unknown, because "
                                       f"the CPU's kernel failed: {reason}")
            self.forget(written)
            return
        finally:
            if drawn:
                torch.set_rng_state(before)
        for item, value in zip_longest(fresh, nested(result) if fresh else ()):
            if item is None:
                break
            if value is None or value.shape != item.shape:
                # What only the backward pass reads; nothing else may become known by this.
                value = torch.zeros(item.shape, dtype=item.dtype) if func in STAND_INS else None
            elif func in EMPTY:
                uninitialized(value)
            self.put(item, value)


def if_finite(func: torch._ops.OpOverload, args: Sequence) -> bool | None:
    """Return what a check for NaN or infinity finds in finite values; None for other operations.

    Args:
        func: the operation; torch.isfinite is `(x == x) * (x.abs() != inf)`.
        args: its positional arguments.
    """
    if func in (aten.isnan.default, aten.isinf.default):
        return False
    if (func in (aten.eq.Tensor, aten.ne.Tensor) and args[0] is args[1]) or (
            func in (aten.eq.Scalar, aten.ne.Scalar) and is_infinite(args[1])):
        return func in (aten.eq.Tensor, aten.ne.Scalar)
    return None


def uninitialized(value: torch.Tensor) -> None:
    """Fill as torch's deterministic mode does, so that nobody reads something plausible."""
    if value.dtype.is_floating_point or value.dtype.is_complex:
        value.fill_(float("nan"))
    else:
        value.fill_(True if value.dtype is torch.bool else torch.iinfo(value.dtype).max)


def written_by(func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> list[torch.Tensor]:
    """The arguments that an operation changes in place."""
    places = WRITES.get(func)
    if places is None:
        places = WRITES[func] = [
            (at, item.name) for at, item in enumerate(func._schema.arguments)
            if item.alias_info is not None and item.alias_info.is_write]
    found = [args[at] if at < len(args) else kwargs.get(name) for at, name in places]
    return tensors(found)


WRITES: dict[torch._ops.OpOverload, list[tuple[int, str]]] = {}
