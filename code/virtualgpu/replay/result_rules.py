"""Collect the closed list of operations that a record may contain.

math_rules.py, network_rules.py, window_rules.py, layout_rules.py, and elementwise.py enter rules by
kind of operation. A rule maps an operation's arguments, under the names of torch's schema, to the
shapes and dtypes of the tensors that it returns, and raises an error for operands that do not fit
together. It computes with integers and dtypes alone. results.py applies the rules, also to the
variants that work in place, write into `out`, or take lists of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.core.shapes import broadcast_shape

Arguments = SimpleNamespace  # by the schema's names
Result = tuple[tuple[int, ...], torch.dtype]  # shape and dtype
Rule = Callable[[Arguments], "list[Result] | None"]  # None: values decide the shapes
RULES: dict[str, Rule] = {}
LONG, FLOAT = torch.int64, torch.float32


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that enters a rule for these operations."""
    def enter(function: Rule) -> Rule:
        RULES.update({name if "." in name else f"aten.{name}": function for name in names})
        return function
    return enter


def require(match: bool, message: str, **operands: Operand) -> None:
    """Raise ValueError with the operands' shapes unless they match."""
    if not match:
        raise ValueError(message + ": " + ", ".join(
            f"{name} {list(item.shape)}" for name, item in operands.items()))


def matching(match: bool, **operands: Operand) -> None:
    require(match, "mismatched shapes", **operands)


def same_dtype(*operands: Operand) -> None:
    """Raise ValueError unless all matrices have one dtype."""
    names = [str(item.dtype).removeprefix("torch.") for item in operands]
    if len(set(names)) > 1:
        raise ValueError(f"a matrix multiplication of different dtypes: {', '.join(names)}")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return what shapes broadcast to. Raises ValueError."""
    shape = broadcast_shape((), *shapes)
    if shape is None:
        raise ValueError(f"shapes that do not broadcast: {', '.join(map(str, map(list, shapes)))}")
    return shape


def expands(shape: Sequence[int], target: Sequence[int]) -> None:
    """Raise ValueError unless a shape can be broadcast to `target`."""
    if broadcast(shape, target) != tuple(target):
        raise ValueError(f"{list(shape)} does not broadcast to {list(target)}")


def axis(dim: int, dims: int) -> int:
    """Return a dimension's index, counted from the front."""
    if not -max(dims, 1) <= dim < max(dims, 1):
        raise ValueError(f"dimension {dim} is out of range for a tensor of {dims} dimensions")
    return dim % max(dims, 1)


def axes(dim: int | Sequence[int] | None, dims: int) -> set[int]:
    """Return the dimensions to reduce; all of them if none is named."""
    named = [dim] if isinstance(dim, int) else list(dim or ())
    chosen = {axis(one, dims) for one in named}
    if len(chosen) < len(named):
        raise ValueError(f"dimensions {named}: one occurs twice")
    return chosen if named else set(range(dims))


def reduced(x: Operand, dim: int | Sequence[int] | None, keep: bool) -> tuple[int, ...]:
    """Return a shape without some of its dimensions, or with size 1 in their place."""
    removed = axes(dim, x.dim())
    return tuple(1 if at in removed else size for at, size in enumerate(x.shape)
                 if keep or at not in removed)


def replaced(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """Return a shape with another size in one dimension."""
    at = axis(dim, len(shape))
    return (*shape[:at], size, *shape[at + 1:]) if shape else ()


def like(x: Operand, dtype: torch.dtype | None = None) -> Result:
    return x.shape, dtype or x.dtype


def optional(x: Operand | None, shape: Sequence[int]) -> None:
    """Check a weight or a bias that may be missing."""
    if x is not None:
        matching(x.shape == tuple(shape), operand=x)
