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

from minimegatron.model.linear import affine, matmul
from minimegatron.model.mappings import TensorParallel

if TYPE_CHECKING:
    from minimegatron.model.linear import GradAccumulator


class SequenceParallel(TensorParallel):
    """The entry into a tensor-parallel region and the exit from it, by g and g-bar.

    Outside the region, hidden states are [s/t, b, h].
    """

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None = None,
                               accumulator: GradAccumulator | None = None) -> torch.Tensor:
        """Enter the region: map x [s/t, b, in] to [s, b, out/t]."""
        return GatherFromSequenceParallelRegionLinear.apply(x, weight, bias, accumulator,
                                                            self.group)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Leave the region: sum the ranks' partial results x [s, b, h] to this rank's [s/t, b, h].
        """
        return ReduceScatterToSequenceParallelRegion.apply(x, self.group)

    def sequence_offset(self, length: int) -> int:
        return self.group.index * length


class GatherFromSequenceParallelRegionLinear(torch.autograd.Function):
    """g and the linear layer after it: y_i = all-gather(x) W_i^T + b_i.

    g all-gathers in the forward pass and reduce-scatters in the backward pass. Only this rank's
    part of x is saved; the weight's gradient gathers it again, which costs one more all-gather and
    saves (t-1)/t of the memory. Where a zero-bubble schedule delays that gradient, the all-gather
    waits, too, so no rank keeps the whole x from B to W.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator, tp):
        ctx.weight, ctx.accumulator, ctx.tp = weight, accumulator, tp
        ctx.save_for_backward(x)
        return affine(tp.all_gather(x), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,), x_grad = ctx.saved_tensors, None
        x = x.detach()  # without the history that led to it
        flat, tp, accumulator = grad.reshape(-1, grad.shape[-1]), ctx.tp, ctx.accumulator
        if accumulator is not None:
            accumulator.add_later(lambda: accumulator.add_product_now(
                flat, tp.all_gather(x).reshape(-1, x.shape[-1])))
        if ctx.needs_input_grad[0]:
            x_grad = ctx.tp.reduce_scatter(matmul(grad, ctx.weight))
        bias_grad = flat.sum(0) if ctx.needs_input_grad[2] else None
        return x_grad, None, bias_grad, None, None


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
