"""Plans of operations: their results and costs, cached by operation and arguments.

A training step repeats a few hundred operations. Each is planned once and then looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch

from virtualgpu.core.operand import (
    TENSORS,
    AnyTensor,
    Operand,
    broadcast_shape,
    operand_of,
    tensors,
)
from virtualgpu.core.rules.work import KernelWork

Results = Any  # an Operand, None, a number, or a list of these


class OperationPlan(NamedTuple):
    """The result and the cost of one operation on arguments of these shapes.

    Attributes:
        results: descriptions of new tensors, nested as the operation returns them; None if it
            works in place.
        changed: position or name of the argument that it writes in place.
        name: the operation's name.
        seconds: duration of its kernels.
        kernels: number of launches; 0 if no kernel runs.
        unknown: whether the operation has no cost rule.
        work: FLOPs and bytes that the duration is derived from.
    """

    results: Results
    changed: int | str | None
    name: str
    seconds: float
    kernels: int
    unknown: bool
    work: KernelWork | None = None

    def make(self, args: Sequence, kwargs: dict):
        """Return the operation's result, with new tensors on meta."""
        if self.results is None:
            return changed_tensor(args, kwargs, self.changed)
        return make_tensors(self.results)


HOST = OperationPlan(None, None, "", 0.0, 0, False)  # runs on the host


class OperationKind(Enum):
    """Kinds of operations.

    COMPOSITE operations consist of others. A VIEW shares its operand's storage and needs no kernel.
    COSTED is everything else.
    """

    COMPOSITE, VIEW, COSTED = range(3)


def kind_of(func: torch._ops.OpOverload) -> OperationKind:
    """Return the kind of an operation; a composite one with a meta kernel is not decomposed."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "Meta"):
        return OperationKind.COMPOSITE
    is_view = (func.is_view or torch.Tag.inplace_view in func.tags
               or func is torch.ops.aten._unsafe_view.default)
    return OperationKind.VIEW if is_view else OperationKind.COSTED


def needs_shape_check(func: torch._ops.OpOverload, operands: Sequence[torch.Tensor],
                      changed: int | str | None) -> bool:
    """Return whether torch must refuse operands that do not broadcast to an in-place target."""
    if func._overloadpacket in MIXED_DEVICES or not operands:
        return False
    return (changed == 0 and torch.Tag.pointwise in func.tags
            and any(broadcast_shape(item.shape, operands[0].shape) != tuple(operands[0].shape)
                    for item in operands))


def refuse_other_devices(func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
                         device_of: Callable[[torch.Tensor], torch.device]) -> None:
    """Raise the error that CUDA raises for tensors on different devices.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.
        device_of: the device of a tensor, as the program knows it.

    Raises:
        RuntimeError: two operands are on different devices. A tensor without dimensions may be on
            any device, like a number.
    """
    if func._overloadpacket in MIXED_DEVICES:
        return
    named = [*zip((item.name for item in func._schema.arguments), args, strict=False),
             *kwargs.items()]
    devices = [(name, device_of(item)) for name, value in named for item in tensors([value])
               if item.dim()]
    if len({device for _, device in devices}) < 2:
        return
    if torch.Tag.pointwise in func.tags:
        both = " and ".join(map(str, sorted({device for _, device in devices}, key=str)[::-1]))
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two "
                           f"devices, {both}!")
    common = devices[0][1]
    name, other = next(item for item in devices if item[1] != common)
    raise RuntimeError(f"Expected all tensors to be on the same device, but got {name} is on "
                       f"{other}, different from other tensors on {common} (when checking "
                       f"argument in method wrapper_CUDA_{func._schema.name.split('::')[1]})")


# Operations whose arguments may be on different devices.
MIXED_DEVICES = {torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.index,
                 torch.ops.aten.index_put_, torch.ops.aten.index_put}


def result_specs(out: object) -> Results:
    """Replace the tensors in an operation's result with descriptions."""
    if isinstance(out, torch.Tensor):
        return operand_of(out)
    return list(map(result_specs, out)) if isinstance(out, (list, tuple)) else out


def make_tensors(specs: Results) -> Results:
    """Replace descriptions with meta tensors, and return everything else unchanged."""
    if isinstance(specs, Operand):
        return torch.empty_strided(specs.shape, specs.strides, dtype=specs.dtype, device="meta")
    if isinstance(specs, (list, tuple)):
        return tuple(map(make_tensors, specs))
    return specs


def nested(results: object) -> Iterator[AnyTensor]:
    """Yield the tensors in an operation's result, which may be nested."""
    if isinstance(results, TENSORS):
        yield results
    elif isinstance(results, (list, tuple)):
        for item in results:
            yield from nested(item)


def signature(argument: object) -> object:
    """Return the hashable part of an argument that determines an operation's plan."""
    if isinstance(argument, torch.Tensor):
        return argument.shape, argument.stride(), argument.dtype, argument.is_meta
    if isinstance(argument, (list, tuple)):
        return tuple(map(signature, argument))
    if isinstance(argument, (float, bool)):
        return type(argument), argument  # 1.0 and True equal 1 as dictionary keys
    return argument


def changed_argument(func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> int | str | None:
    """Return the position or name of the argument that an operation writes and returns.

    Returns -1 if it returns nothing, and None if its result is a new tensor.
    """
    returns = func._schema.returns
    if returns and returns[0].alias_info is None:
        return None
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if not returns:
                return -1
            return position if position < len(args) else argument.name
    if not returns:  # an assertion
        return -1
    raise NotImplementedError(f"{func} returns neither a new tensor nor one that it writes")


def changed_tensor(args: Sequence, kwargs: dict, changed: int | str) -> torch.Tensor | None:
    if changed == -1:
        return None
    return kwargs[changed] if isinstance(changed, str) else args[changed]


def results_in_place(args: Sequence, kwargs: dict, changed: int | str) -> list[torch.Tensor]:
    """Return the tensors that an operation returns in place of new ones, or writes as its `out`.

    Args:
        args: its positional arguments.
        kwargs: its keyword arguments.
        changed: result of changed_argument.
    """
    return tensors([kwargs.get("out") if changed == -1 else changed_tensor(args, kwargs, changed)])


def to_meta(value):
    """Return an argument with its tensors and devices moved to meta."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_meta, value))
    if isinstance(value, dict):
        return {name: to_meta(item) for name, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value
