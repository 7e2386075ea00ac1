"""What result rules compute with: the registry, checks of shapes, and promoted dtypes.

A result rule maps an operation's arguments, under the names of torch's schema, to the shapes and
dtypes of the tensors that it returns, and raises an error for operands that do not fit together.
It computes with integers and dtypes alone, because the arguments may come from a stranger's record.
results.py applies the rules, also to the variants that work in place or write into `out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

import torch

from virtualgpu.core.operand import Operand, broadcast_shape

Arguments = SimpleNamespace  # by the schema's names
Result = tuple[tuple[int, ...], torch.dtype]  # shape and dtype
ResultRule = Callable[[Arguments], "list[Result] | None"]  # None: values decide the shapes
RESULT_RULES: dict[str, ResultRule] = {}
LONG, FLOAT = torch.int64, torch.float32
NUMBERS = (bool, int, float, complex)
MOST_TENSORS = 20_000  # of one operation
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64,
        torch.complex32: torch.float16}
COMPLEX = {real: number for number, real in REAL.items()} | {torch.bfloat16: torch.complex64}


def returns(*names: str) -> Callable[[ResultRule], ResultRule]:
    """Return a decorator that enters a result rule for these operations."""
    def enter(function: ResultRule) -> ResultRule:
        RESULT_RULES.update({name if "." in name else f"aten.{name}": function for name in names})
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
    """Raise RuntimeError unless all matrices have one dtype."""
    first, *others = operands
    for other in others:
        if other.dtype != first.dtype:
            raise RuntimeError("expected both matrices of a product to have the same dtype, but "
                               f"got: {first.dtype} != {other.dtype}")


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


def window_positions(size: int, kernel: int, stride: int, padding: int, dilation: int,
                     ceil: bool = False) -> int:
    """Return the number of positions of a window, as in a convolution or a pooling."""
    if min(kernel, stride, dilation) < 1 or padding < 0:
        raise ValueError(f"a window of {kernel} in steps of {stride}, padding {padding}, "
                         f"dilation {dilation}")
    rest = size + 2 * padding - dilation * (kernel - 1) - 1
    if rest < 0:
        raise ValueError(f"a window of {kernel} is larger than {size} elements")
    count = (-(-rest // stride) if ceil else rest // stride) + 1
    return count - (ceil and (count - 1) * stride >= size + padding)


def one_per_dimension(values: Sequence[int], dims: int) -> list[int]:
    """Return one value for each dimension."""
    found = list(values) * (dims if len(values) == 1 else 1)
    if len(found) != dims:
        raise ValueError(f"{list(values)[:8]}: expected {dims} numbers")
    return found


# ---- the dtypes that torch promotes operands to (c10/core/ScalarType.h and

# ATen/native/TypeProperties.cpp)


def _dtype_of_number(number: bool | int | float | complex) -> torch.dtype:
    default = torch.get_default_dtype()
    return {bool: torch.bool, int: LONG, float: default, complex: COMPLEX[default]}[type(number)]


def promoted(operands: Iterable[Operand | bool | int | float | complex]) -> torch.dtype:
    """Return torch.result_type of these: tensors with dimensions decide before those without any,
    and those before numbers, as long as their category (integer, float, complex) suffices."""
    by_rank: list[torch.dtype | None] = [None, None, None]
    for item in operands:
        number = not isinstance(item, Operand)
        rank = 2 if number else 0 if item.shape else 1
        dtype = _dtype_of_number(item) if number else item.dtype
        before = by_rank[rank]
        by_rank[rank] = dtype if before is None else torch.promote_types(before, dtype)
    dims, zeros, numbers = by_rank
    result = _combined(dims, _combined(zeros, numbers))
    if result is None:
        raise ValueError("no operand has a dtype")
    return result


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return COMPLEX.get(higher, higher) if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def floating(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype itself, or the default one for integers."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def summed(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a sum: integers are summed in int64."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def real(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the real part."""
    return REAL.get(dtype, dtype)


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which CUDA accumulates, such as that of a normalization's statistics."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
