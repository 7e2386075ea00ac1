"""Matrix products in the type of their factors, where the CPU has no fp16 unit as well.

A native fp16 product is 65 times slower than an fp32 one on a CPU. There the factors are widened to
fp32 and the result is rounded to fp16: the rounding, overflow and underflow of fp16 results with
sums in fp32, which is what a GPU's matrix units do. Every other type multiplies natively.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def widen(x: torch.Tensor) -> torch.Tensor:
    """`x` in the type that its products are computed in."""
    return x.float() if x.dtype == torch.float16 and x.device.type == "cpu" else x


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [.., n, k] @ b [k, m], in the factors' type."""
    return (widen(a) @ widen(b)).to(a.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [.., in] @ weight [out, in]^T + bias [out], in x's type."""
    return F.linear(widen(x), widen(weight), None if bias is None else widen(bias)).to(x.dtype)
