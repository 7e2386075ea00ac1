"""Values of small tensors, kept in a twin: a CPU storage that belongs to a meta tensor's storage.

Views share a twin. An operation whose operands are all known also runs on the twins; any other
makes its results unknown.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol

import torch
from torch.utils._pytree import tree_map

from virtualgpu.core.operand import tensors
from virtualgpu.core.plan import nested
from virtualgpu.pytorch.assumptions import Decisions
from virtualgpu.pytorch.stand_ins import STAND_INS
from virtualgpu.pytorch.unknown import FINITE, is_infinite
from virtualgpu.pytorch.visible import CPU, key_of

LIMIT = 2**20  # bytes
FEW = 1024  # elements that a program may read one by one, such as an amax or a norm per tensor
aten = torch.ops.aten
OVERWRITE = {aten.copy_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default}
EMPTY = {aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default,
         aten.new_empty.default, aten.new_empty_strided.default}
# Operations whose results do not depend on their operands' values.
SHAPE_ONLY = {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default,
              aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
              aten.rand_like.default, aten.randn_like.default, *EMPTY}
# How operations combine boolean tensors that have the same value everywhere.
TRUTH = {aten.any.default: any, aten.any.dim: any, aten.any.dims: any,
         aten.all.default: all, aten.all.dim: all, aten.all.dims: all,
         aten.mul.Tensor: all, aten.logical_and.default: all, aten.bitwise_and.Tensor: all,
         aten.logical_or.default: any, aten.bitwise_or.Tensor: any,
         aten.logical_not.default: lambda values: not values[0],
         aten.bitwise_not.default: lambda values: not values[0]}
# Comparisons with a number, which have the same answer for every element of a typical tensor.
COMPARISONS = {aten.eq.Scalar: operator.eq, aten.ne.Scalar: operator.ne,
               aten.lt.Scalar: operator.lt, aten.le.Scalar: operator.le,
               aten.gt.Scalar: operator.gt, aten.ge.Scalar: operator.ge}
# Those of TRUTH that treat numbers differently.
BITWISE = {aten.mul.Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
           aten.bitwise_not.default}
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default
RANDOM_FILL = {"aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_",
               "aten::exponential_", "aten::geometric_", "aten::log_normal_", "aten::cauchy_"}


class Comparisons(Protocol):
    """Decides comparisons of tokens that were not computed (tokens.py)."""

    last: int | None
    used: bool

    def compared(self, func: torch._ops.OpOverload, args: Sequence) -> bool | None: ...


class Values:
    """The twins of one GPU's tensors."""

    def __init__(self, limit: int, assumptions: Decisions, typical: float | None = None) -> None:
        """Begin without values.

        Args:
            limit: bytes of the largest storage that gets a twin.
            assumptions: receives the assumptions that are made.
            typical: what a few numbers are assumed to be that large tensors yield, such as an amax;
                None: they are unknown.
        """
        self.limit, self.assumptions, self.typical = limit, assumptions, typical
        self.twins: dict[int, torch.UntypedStorage] = {}
        self.lost: set[int] = set()  # CPU storages that unknown values were written to
        self.uniform: dict[int, bool] = {}  # large boolean tensors with one value, by storage
        self.seed, self.offset = 0, 0  # the GPU generator's state, as on CUDA
        self.tokens: Comparisons | None = None  # decides comparisons of unknown tokens (tokens.py)

    def known(self, tensor: torch.Tensor) -> bool:
        return key_of(tensor) in self.twins

    def all_known(self, operands: Sequence[torch.Tensor]) -> bool:
        return all(self.known(item) if item.is_meta else key_of(item) not in self.lost
                   for item in operands)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a CPU tensor that shares the twin's memory."""
        twin = self.twins[key_of(tensor)]
        return torch.empty(0, dtype=tensor.dtype).set_(
            twin, tensor.storage_offset(), tensor.shape, tensor.stride())

    def put(self, tensor: torch.Tensor, value: torch.Tensor | None) -> None:
        """Set the value of a tensor that covers its storage; None makes it unknown."""
        key = key_of(tensor)
        if value is None:
            self.twins.pop(key, None)
            return
        storage = tensor.untyped_storage()
        if not 0 < storage.nbytes() <= self.limit:
            return
        is_new = key not in self.twins
        self.twins[key] = torch.UntypedStorage(storage.nbytes())
        self.value(tensor).copy_(value)
        if is_new:
            weakref.finalize(storage, self.twins.pop, key, None).atexit = False

    def forget(self, written: Sequence[torch.Tensor]) -> None:
        for item in written:
            if item.is_meta:
                self.twins.pop(key_of(item), None)
                self.uniform.pop(key_of(item), None)

    def lose(self, tensor: torch.Tensor) -> None:
        """Make a CPU tensor unknown, and fill its memory with NaN."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.lost:
            self.lost.add(key)
            weakref.finalize(storage, self.lost.discard, key).atexit = False
            contents = torch.empty(0, dtype=tensor.dtype)
            count = storage.nbytes() // contents.element_size()
            uninitialized(contents.set_(storage, 0, (count,)))

    def regain(self, tensor: torch.Tensor) -> None:
        """Make a CPU tensor known again after known values were written to its entire storage."""
        if tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
            self.lost.discard(key_of(tensor))

    def follow(self, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
               out: object) -> None:
        """Compute the values of an operation's results after it has run on the virtual GPU.

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
        overwrites = func in OVERWRITE or name in RANDOM_FILL
        if func not in SHAPE_ONLY:
            read = tensors((*args, *kwargs.values()))
            if overwrites:  # its old value does not matter
                read = [item for item in read if item is not written[0]]
            if not self.all_known(read):
                self.forget(written)
                self._assume_typical((*written, *fresh))
                return
        if overwrites and not self.known(written[0]) and not self._make_twin(written[0]):
            return
        self._compute(func, args, kwargs, written, fresh)

    def truth(self, func: torch._ops.OpOverload, args: Sequence) -> bool | None:
        """Return the boolean that an operation yields everywhere if unknown values are finite.

        With a typical value, also that of comparisons with a number. Returns None for other
        operations.

        Args:
            func: the operation.
            args: its positional arguments.
        """
        if func in TRUTH and self.uniform:
            values = [self.uniform.get(key_of(item)) for item in tensors(args)]
            if None not in values:
                return TRUTH[func](values)
        answer = if_finite(func, args)
        if answer is None and self.tokens is not None:
            decided = self.tokens.compared(func, args)
            if decided is not None:
                return decided
        if answer is None and self.typical is not None:
            return self._if_typical(func, args)
        if answer is None or self.all_known(tensors(args)):
            return None
        self.assumptions.note_here(FINITE)
        return answer

    def _if_typical(self, func: torch._ops.OpOverload, args: Sequence) -> bool | None:
        """Return the boolean that an operation yields everywhere for elements of typical value."""
        if func in COMPARISONS and not self.all_known(args[:1]) and args[0].dtype != torch.bool:
            answer = COMPARISONS[func](self.typical, args[1])
        elif (func in TRUTH and func not in BITWISE and not self.all_known(tensors(args))
              and all(item.dtype != torch.bool for item in tensors(args))):
            answer = TRUTH[func]([bool(self.typical)] * len(tensors(args)))
        else:
            return None
        self._note_typical()
        return answer

    def _note_typical(self) -> None:
        self.assumptions.note_here(f"a number that was not computed is {self.typical:g}")

    def _assume_typical(self, results: Sequence[torch.Tensor]) -> None:
        """Set a few numbers that were not computed to the typical value, if there is one."""
        for item in results:
            storage = item.untyped_storage()
            if (self.typical is not None and item.dtype is not torch.bool
                    and storage.nbytes() <= FEW * item.element_size()):
                self._note_typical()
                self.put(item, torch.full(item.shape, self.typical, dtype=item.dtype))

    def typical_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a CPU tensor of typical values for a read of a few unknown numbers, or None."""
        if self.typical is None or tensor.dtype is torch.bool or tensor.numel() > FEW:
            return None
        self._note_typical()
        return torch.full(tensor.shape, self.typical, dtype=tensor.dtype)

    def _fill(self, tensor: torch.Tensor, truth: bool) -> None:
        """Fill a new tensor with one boolean."""
        storage = tensor.untyped_storage()
        if storage.nbytes() <= self.limit:
            self.put(tensor, torch.full(tensor.shape, truth, dtype=tensor.dtype))
        else:
            self.uniform[storage._cdata] = truth
            weakref.finalize(storage, self.uniform.pop, storage._cdata, None).atexit = False

    def _make_twin(self, target: torch.Tensor) -> bool:
        """Make a twin for a tensor that will be fully overwritten; return False if impossible."""
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
                # Results of substitutes that only the backward pass reads become zeros.
                value = torch.zeros(item.shape, dtype=item.dtype) if func in STAND_INS else None
            elif func in EMPTY:
                uninitialized(value)
            self.put(item, value)


def if_finite(func: torch._ops.OpOverload, args: Sequence) -> bool | None:
    """Return the result of a check for NaN or infinity on finite values; None for other operations.

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
    """Fill a tensor as torch's deterministic mode does, so that no value looks plausible."""
    if value.dtype.is_floating_point or value.dtype.is_complex:
        value.fill_(float("nan"))
    else:
        value.fill_(True if value.dtype is torch.bool else torch.iinfo(value.dtype).max)


def written_by(func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> list[torch.Tensor]:
    """Return the arguments that an operation writes in place."""
    places = WRITES.get(func)
    if places is None:
        places = WRITES[func] = [
            (position, item.name) for position, item in enumerate(func._schema.arguments)
            if item.alias_info is not None and item.alias_info.is_write]
    return tensors([args[position] if position < len(args) else kwargs.get(name)
                    for position, name in places])


WRITES: dict[torch._ops.OpOverload, list[tuple[int, str]]] = {}
