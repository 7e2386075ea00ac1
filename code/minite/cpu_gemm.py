"""FP8 matrix multiplication on a CPU: exact sums, the same bits and a usable speed everywhere.

PyTorch's own kernel depends on the processor. With AMX, torch 2.13 passes `torch._scaled_mm` to a
reference kernel of oneDNN that is over 1,000 times slower than a float32 GEMM. Without AMX, it sums
in float32, in an order that depends on the vector width. This module replaces that kernel in every
process that imports minite, so the code that students write is as fast as ours.

A product of two FP8 numbers is a short integer times a power of two, so float64 represents both it
and the sums exactly, in any order. For E4M3 that holds for up to 2^17 terms. A product with E5M2
spans more exponents, and a sum is exact as long as it stays below 2^53 times its smallest term.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b [m, n] in float32, of a [m, k] and b [k, n], with float64 accumulation."""
    with torch.autocast(a.device.type, enabled=False):  # which would multiply in 16 bits
        return (a.double() @ b.double()).float()


def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
              scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None,
              use_fast_accum: bool = False) -> Tensor:
    """Return `torch._scaled_mm` of CPU tensors: (a @ b) x scale_a x scale_b + bias.

    Args:
        a: [m, k], FP8.
        b: [k, n], FP8.
        scale_a: float32; one element, or [m, 1].
        scale_b: float32; one element, or [1, n].
        bias: [n], or None.
        scale_result: an FP8 result is divided by it; other results ignore it, as PyTorch's do.
        out_dtype: of the result; None is a's dtype.
        use_fast_accum: ignored, as a CPU has no accumulators to shorten.

    Raises:
        ValueError: an operand is not FP8, or the scales fit neither per-tensor nor rowwise scaling.
        RuntimeError: the shapes do not match.
    """
    _check(a, b, scale_a, scale_b, bias)
    dtype = out_dtype or a.dtype
    y = matmul(a, b) * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    if bias is not None:
        y = y + bias.float()
    if scale_result is not None and dtype in FP8:
        y = y / scale_result
    return y.to(dtype)


def _check(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None) -> None:
    if a.dtype not in FP8 or b.dtype not in FP8:
        raise ValueError(f"torch._scaled_mm multiplies FP8 matrices, not {a.dtype} and {b.dtype}; "
                         "nearest: .to(torch.float8_e4m3fn)")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"torch._scaled_mm: shapes {tuple(a.shape)} and {tuple(b.shape)} cannot "
                           "be multiplied; pass a [m, k] and b [k, n], usually weight.t()")
    rowwise = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
    if not rowwise and (scale_a.numel(), scale_b.numel()) != (1, 1):
        raise ValueError(
            f"torch._scaled_mm: scales of shapes {tuple(scale_a.shape)} and {tuple(scale_b.shape)};"
            f" pass one element each, or {(a.shape[0], 1)} and {(1, b.shape[1])} for one per row")
    if (scale_a.dtype, scale_b.dtype) != (torch.float32, torch.float32):
        raise ValueError(f"torch._scaled_mm: scales in {scale_a.dtype} and {scale_b.dtype}; "
                         "nearest: float32")
    if bias is not None and bias.shape != (b.shape[1],):
        raise RuntimeError(f"torch._scaled_mm: a bias of shape {tuple(bias.shape)}; the result has "
                           f"{b.shape[1]} columns")


def _below_autograd(*arguments, **keywords) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():  # as in PyTorch, the result has no gradient
        return scaled_mm(*arguments, **keywords)


def _into(*arguments, out: Tensor, **keywords) -> Tensor:
    return out.copy_(_below_autograd(*arguments, **keywords))


_library = torch.library.Library("aten", "IMPL")  # deleting it would restore PyTorch's kernel
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(?s).*previously registered kernel", UserWarning)
    _library.impl("_scaled_mm", _below_autograd, "CPU", allow_override=True)
    _library.impl("_scaled_mm.out", _into, "CPU", allow_override=True)
