"""What an operation does, remembered by its name and its arguments' shapes.

A training step repeats the same few hundred operations; the first time each is worked out, and then
looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from virtualgpu.core.rules import Work
from virtualgpu.core.shapes import Spec


class Plan(NamedTuple):
    """results: new tensors; None where an argument is changed in place. changed: its position or
    name. kernels: launches; 0: none runs. unknown: whether the cost is a guess. work: what was
    costed."""

    results: Spec | list[Spec | None] | None
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
        if isinstance(self.results, list):
            return tuple(empty(spec) for spec in self.results)
        return empty(self.results)


HOST = Plan(None, None, "", 0.0, 0, False)  # not the card's business


def shares(func: torch._ops.OpOverload) -> bool:
    """Whether it names memory in another way: torch itself does that, no kernel runs."""
    return (func.is_view or torch.Tag.inplace_view in func.tags
            or func is torch.ops.aten._unsafe_view.default)


def needs_values(func: torch._ops.OpOverload, operands: Sequence[torch.Tensor]) -> bool:
    """Whether the result, or its shape, depends on what the tensors hold."""
    if torch.Tag.dynamic_output_shape in func.tags:
        # A tensor indexed by numbers has a shape that is known, one by a mask has not.
        return func._overloadpacket is not torch.ops.aten.index or any(
            item.dtype in (torch.bool, torch.uint8) for item in operands[1:])
    return torch.Tag.data_dependent_output in func.tags


def misfits(func: torch._ops.OpOverload, args: Sequence, operands: Sequence[torch.Tensor],
            changed: int | str | None) -> bool:
    """Whether torch must be asked if these tensors go together: on several devices, or changed in
    place by another shape."""
    if func._overloadpacket in MIXED or not operands:
        return False
    whole = [item for item in operands if item.dim()]
    if len({item.device for item in whole}) > 1:
        return True
    return (changed == 0 and torch.Tag.pointwise in func.tags
            and any(item.shape != operands[0].shape for item in whole))


# Some of their arguments may lie elsewhere.
MIXED = {torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten.index,
         torch.ops.aten.index_put_, torch.ops.aten.index_put}


def empty(spec: Spec | None) -> torch.Tensor | None:
    if spec is None:
        return None
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")


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


def to_meta(value):
    """The same argument with its tensors on meta."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_meta, value))
    if isinstance(value, dict):
        return {name: to_meta(item) for name, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value
