"""What an operation does, remembered by its name and its arguments' shapes.

A training step repeats the same few hundred operations; the first time each is worked out, and then
looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import torch

from virtualgpu.core import rms_norm  # noqa: F401  registers a kernel
from virtualgpu.core.rules import Work, tensors
from virtualgpu.core.shapes import Results, Spec


class Plan(NamedTuple):
    """What one operation on arguments of these shapes does.

    Attributes:
        results: new tensors, nested as the operation returns them; None where it changes one.
        changed: position or name of the argument that it changes in place.
        name: the operation's.
        seconds: time of its kernels.
        kernels: launches; 0 where none runs.
        unknown: whether the cost is a guess.
        work: what was costed.
    """

    results: Results
    changed: int | str | None
    name: str
    seconds: float
    kernels: int
    unknown: bool
    work: Work | None = None

    def make(self, args: Sequence, kwargs: dict):
        """What the operation returns."""
        if self.results is None:
            return changed_tensor(args, kwargs, self.changed)
        return make(self.results)


HOST = Plan(None, None, "", 0.0, 0, False)  # not the card's business


class Kind(Enum):
    """How an operation is treated.

    COMPOSITE is written in terms of other operations. SHARES names memory in another way, which
    torch itself does without a kernel. COSTS is everything else.
    """

    COMPOSITE, SHARES, COSTS = range(3)


def kind_of(func: torch._ops.OpOverload) -> Kind:
    """A composite operation that has a kernel for meta tensors as well is not taken apart."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "Meta"):
        return Kind.COMPOSITE
    shares = (func.is_view or torch.Tag.inplace_view in func.tags
              or func is torch.ops.aten._unsafe_view.default)
    return Kind.SHARES if shares else Kind.COSTS


def needs_values(func: torch._ops.OpOverload, operands: Sequence[torch.Tensor]) -> bool:
    """Whether the result, or its shape, depends on what the tensors hold."""
    if torch.Tag.dynamic_output_shape in func.tags:
        # A tensor indexed by numbers has a shape that is known, one by a mask has not.
        return func._overloadpacket is not torch.ops.aten.index or any(
            item.dtype in (torch.bool, torch.uint8) for item in operands[1:])
    return torch.Tag.data_dependent_output in func.tags


def misfits(func: torch._ops.OpOverload, operands: Sequence[torch.Tensor],
            changed: int | str | None) -> bool:
    """Whether torch must be asked if these tensors go together, because one is changed in place by
    another shape."""
    if func._overloadpacket in MIXED or not operands:
        return False
    return (changed == 0 and torch.Tag.pointwise in func.tags
            and any(item.shape != operands[0].shape for item in operands if item.dim()))


def refuse_other_devices(func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                         device_of: Callable[[torch.Tensor], torch.device]) -> None:
    """Raise what CUDA raises when tensors lie on different devices.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device_of: the device of a tensor, as the program knows it.

    Raises RuntimeError. A tensor without dimensions may lie anywhere, like a number.
    """
    if func._overloadpacket in MIXED:
        return
    named = [*zip((item.name for item in func._schema.arguments), args, strict=False),
             *kwargs.items()]
    found = [(name, device_of(item)) for name, value in named for item in tensors([value])
             if item.dim()]
    if len({device for _, device in found}) < 2:
        return
    if torch.Tag.pointwise in func.tags:
        both = " and ".join(map(str, sorted({device for _, device in found}, key=str)[::-1]))
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two "
                           f"devices, {both}!")
    common = found[0][1]
    name, other = next(item for item in found if item[1] != common)
    raise RuntimeError(f"Expected all tensors to be on the same device, but got {name} is on "
                       f"{other}, different from other tensors on {common} (when checking "
                       f"argument in method wrapper_CUDA_{func._schema.name.split('::')[1]})")


# Some of their arguments may lie elsewhere.
MIXED = {torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.index,
         torch.ops.aten.index_put_, torch.ops.aten.index_put}


def make(specs: Results) -> Results:
    """Meta tensors in place of specifications; anything else is returned as it is."""
    if isinstance(specs, Spec):
        return torch.empty_strided(specs.shape, specs.strides, dtype=specs.dtype, device="meta")
    if isinstance(specs, (list, tuple)):
        return tuple(map(make, specs))
    return specs


def nested(results: object) -> Iterator[torch.Tensor]:
    """Every tensor in what an operation returns."""
    if isinstance(results, torch.Tensor):
        yield results
    elif isinstance(results, (list, tuple)):
        for item in results:
            yield from nested(item)


def mark(argument: object) -> object:
    """What of an argument decides what the operation does; hashable."""
    if isinstance(argument, torch.Tensor):
        return argument.shape, argument.stride(), argument.dtype, argument.is_meta
    if isinstance(argument, (list, tuple)):
        return tuple(map(mark, argument))
    if isinstance(argument, (float, bool)):
        return type(argument), argument  # 1.0 and True would find the plan of 1
    return argument


def changed_argument(func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> int | str | None:
    """Position or name of the argument that is changed and returned; -1 where one is changed and
    nothing returned; None where the result is new."""
    returns = func._schema.returns
    if returns and returns[0].alias_info is None:
        return None
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if not returns:
                return -1
            return at if at < len(args) else argument.name
    raise NotImplementedError(f"{func} returns neither a new tensor nor one that it changes")


def changed_tensor(args: Sequence, kwargs: dict, changed: int | str) -> torch.Tensor | None:
    if changed == -1:
        return None
    return kwargs[changed] if isinstance(changed, str) else args[changed]


def results_in_place(args: Sequence, kwargs: dict, changed: int | str) -> list[torch.Tensor]:
    """Return the tensors that an operation returns in place of new ones, or writes as its `out`.

    Args:
        args: its positional arguments.
        kwargs: its keyword arguments.
        changed: as changed_argument found.
    """
    return tensors([kwargs.get("out") if changed == -1 else changed_tensor(args, kwargs, changed)])


def to_meta(value):
    """The same argument with its tensors on meta."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_meta, value))
    if isinstance(value, dict):
        return {name: to_meta(item) for name, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value
