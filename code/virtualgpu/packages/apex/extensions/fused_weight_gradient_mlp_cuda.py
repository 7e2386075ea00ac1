"""Apex's GEMMs that add a linear layer's weight gradient to a buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.packages.refusals import used


def wgrad_gemm_accum_fp32(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:
    """Add d_output [.., out]^T @ input [.., in] to d_weight [out, in] in fp32."""
    used("apex")
    torch.ops.virtualgpu.add_product(d_weight, d_output.flatten(0, -2).t(), input.flatten(0, -2))


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32  # with a buffer in the operands' dtype
