"""The dtypes that torch promotes operands to, from dtypes alone (c10/core/ScalarType.h and
ATen/native/TypeProperties.cpp)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from virtualgpu.core.operand import Operand

NUMBERS = (bool, int, float, complex)
DEFAULT = torch.float32
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64,
        torch.complex32: torch.float16}
COMPLEX = {real: number for number, real in REAL.items()} | {torch.bfloat16: torch.complex64}
OF_NUMBER = {bool: torch.bool, int: torch.int64, float: DEFAULT, complex: torch.complex64}


def promoted(operands: Iterable[Operand | bool | int | float | complex]) -> torch.dtype:
    """Return torch.result_type of these: tensors with dimensions decide before those without any,
    and those before numbers, as long as their category (integer, float, complex) suffices."""
    by_rank: list[torch.dtype | None] = [None, None, None]
    for item in operands:
        number = not isinstance(item, Operand)
        rank = 2 if number else 0 if item.shape else 1
        dtype = OF_NUMBER[type(item)] if number else item.dtype
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
    return dtype if dtype.is_floating_point or dtype.is_complex else DEFAULT


def summed(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a sum: integers are summed in int64."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def real(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the real part."""
    return REAL.get(dtype, dtype)


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which CUDA accumulates, such as that of a normalization's statistics."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
