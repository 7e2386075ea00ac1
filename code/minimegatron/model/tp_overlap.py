"""Overlap of tensor-parallel communication with GEMMs (--tp-comm-overlap).

minite.overlap has the schedule, which is Transformer Engine's; this file has its arithmetic in 16
bits and in FP8. The FLOPs stay the same, but smaller GEMMs are less efficient. The output layer is
column-parallel, too. Where a zero-bubble schedule delays the weight's gradient, nothing hides the
reduce-scatter before it.

Only --tp-comm-overlap imports this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minimegatron.model import fp8_ops, ops
from minimegatron.model.fp8_linear import Fp8TensorParallel, multiply
from minimegatron.model.linear import affine, to_compute_dtype
from minimegatron.model.sequence_parallel import SequenceParallel
from minite.overlap import GatherLinear, LinearReduceScatter
from minite.quantize import Quantized

if TYPE_CHECKING:
    from minimegatron.model.linear import GradAccumulator


class Overlap:
    """How a linear layer enters and leaves its region while its collectives overlap its GEMMs.

    Subclasses are minite.overlap.OverlappedLinear.
    """

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None = None,
                               accumulator: GradAccumulator | None = None) -> torch.Tensor:
        return GatherLinear.apply(x, weight, bias, accumulator, self)

    def row_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                            accumulator: GradAccumulator | None) -> torch.Tensor:
        y = LinearReduceScatter.apply(x, weight, accumulator, self)
        return y if bias is None else ops.add_bias(y, bias)


class SequenceParallelWithOverlap(Overlap, SequenceParallel):
    """In 16 bits."""

    one_scale = fp8_wgrad = False
    input = grad = staticmethod(lambda x: x)

    def rounded(self, weight):
        return weight, weight.t()

    def quantize_input(self, x):
        return x, x

    def quantize_grad(self, dy):
        return dy, dy

    def multiply(self, a, b, dtype):
        return affine(a, b, None).contiguous()

    def multiply_into(self, out, a, b, bias):
        if to_compute_dtype(a) is not a:
            out.copy_(affine(a, b, bias))
        elif bias is None:
            torch.mm(a, b.t(), out=out)
        else:
            torch.addmm(bias, a, b.t(), out=out)

    def add_weight_grad(self, accumulator, grad, x, dtype):
        if accumulator is not None:
            accumulator.add_product(grad, x)


class Fp8TensorParallelWithOverlap(Overlap, Fp8TensorParallel):
    """In FP8."""

    def multiply(self, a, b, dtype):
        return multiply(a, b, dtype)

    def multiply_into(self, out, a: Quantized, b: Quantized, bias):
        a_block, b_block = a.block or (0, 0), b.block or (0, 0)
        fp8_ops.fp8_gemm_into(out, a.data, a.scale_inv, b.data, b.scale_inv, a_block[0],
                              b_block[0], a_block[1], bias)
