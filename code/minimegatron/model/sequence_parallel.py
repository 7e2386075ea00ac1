"""Sequence parallelism: between tensor-parallel layers, every rank keeps s/t of the sequence.

With tensor parallelism alone, all t ranks do the same dropouts and norms on the same [s, b, h].
Korthikanti et al. 2022, section 4.2.2, partition these along the sequence: f and f-bar become g and
g-bar, an all-gather and a reduce-scatter, which together move as many bytes as the all-reduces did.
Replicated parameters (norms, biases of row-parallel layers, positions) then see s/t of the tokens,
so the optimizer all-reduces their gradients over the t ranks.

Only --sequence-parallel imports this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minimegatron.model import matmul
from minimegatron.model.linear import linear

if TYPE_CHECKING:
    from minimegatron.parallel.ddp import GradAccumulator
    from minimegatron.parallel.grid import Group


class SequenceParallel:
    """The entry into a tensor-parallel region, and the exit, under sequence parallelism."""

    def __init__(self, group: Group, overlaps: bool) -> None:
        """Prepare for the tensor-parallel ranks of `group`, with --tp-comm-overlap or without."""
        self.group, self.overlaps = group, overlaps

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None, accumulator: GradAccumulator | None
                               ) -> torch.Tensor:
        """Map x [s/t, b, in] to [s, b, out/t] with this rank's weight [out/t, in]."""
        function = GatherFromSequenceParallelRegionLinear
        if self.overlaps:
            from minimegatron.model.tp_overlap import GatherLinearWithOverlap

            function = GatherLinearWithOverlap
        return function.apply(x, weight, bias, accumulator, self.group)

    def row_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                            accumulator: GradAccumulator | None) -> torch.Tensor:
        """Map x [s, b, in/t] to [s/t, b, out] with this rank's weight [out, in/t]."""
        if not self.overlaps:
            return self.reduce(linear(x, weight, None, accumulator))
        from minimegatron.model.tp_overlap import LinearReduceScatterWithOverlap

        return LinearReduceScatterWithOverlap.apply(x, weight, accumulator, self.group)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' partial results x [s, b, h]; return this rank's [s/t, b, h]."""
        return ReduceScatterToSequenceParallelRegion.apply(x, self.group)


class GatherFromSequenceParallelRegionLinear(torch.autograd.Function):
    """g and the linear layer after it: y_i = all-gather(x) W_i^T + b_i.

    g all-gathers in the forward pass and reduce-scatters in the backward pass. Only this rank's
    part of x is saved; the backward pass gathers it again, which costs one more all-gather and
    saves (t-1)/t of the memory.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator, tp):
        ctx.weight, ctx.has_bias, ctx.accumulator = weight, bias is not None, accumulator
        ctx.tp = tp
        ctx.save_for_backward(x)
        return matmul.linear(tp.all_gather(x), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x, x_grad = ctx.tp.all_gather(x), None
        flat = grad.reshape(-1, grad.shape[-1])
        ctx.accumulator.add_product(flat, x.reshape(-1, x.shape[-1]))
        if ctx.needs_input_grad[0]:
            x_grad = ctx.tp.reduce_scatter(matmul.matmul(grad, ctx.weight))
        return x_grad, None, flat.sum(0) if ctx.has_bias else None, None, None


class ReduceScatterToSequenceParallelRegion(torch.autograd.Function):
    """g-bar: reduce-scatter [s, b, h] to [s/t, b, h] in the forward pass, all-gather in the
    backward pass."""

    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return tp.reduce_scatter(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.tp.all_gather(grad), None
