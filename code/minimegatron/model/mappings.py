"""The entry of a layer into its tensor-parallel region and the exit from it: operators f and g.

Shoeybi et al. 2019, section 3: f copies its input in the forward pass and all-reduces the gradient
in the backward pass, and g does the reverse (Korthikanti et al. 2022 call it f-bar). Sequence
parallelism replaces both (see sequence_parallel.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minimegatron.context import Context
from minimegatron.model import ops
from minimegatron.model.linear import linear

if TYPE_CHECKING:
    from minimegatron.dropout import Dropout
    from minimegatron.model.linear import GradAccumulator


class CopyToTensorParallelRegion(torch.autograd.Function):
    """f: identity in the forward pass, all-reduce in the backward pass."""

    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        # In place: the linear layer's backward pass has just made it, and nobody else holds it.
        total = grad.contiguous()
        ctx.tp.all_reduce(total)
        return total, None


class ReduceFromTensorParallelRegion(torch.autograd.Function):
    """g (f-bar in Korthikanti et al.): all-reduce in the forward pass, identity in the backward
    pass."""

    @staticmethod
    def forward(ctx, x, tp):
        total = x.contiguous()  # in place if it is contiguous, as the result of a matmul is
        if total is x:
            ctx.mark_dirty(x)
        tp.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class TensorParallel:
    """The entry of a layer into its tensor-parallel region, and the exit from it.

    Outside the region, hidden states are [s, b, h] on every rank.
    """

    def __init__(self, ctx: Context) -> None:
        self.group = ctx.grid.tp

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None = None,
                               accumulator: GradAccumulator | None = None) -> torch.Tensor:
        """Enter the region: map x [s, b, in] to [s, b, out/t] with this rank's [out/t, in]."""
        if self.group.size > 1:
            x = CopyToTensorParallelRegion.apply(x, self.group)
        return linear(x, weight, bias, accumulator)

    def row_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                            accumulator: GradAccumulator | None) -> torch.Tensor:
        """Leave the region: map x [s, b, in/t] to [s, b, out] with this rank's [out, in/t]."""
        if self.group.size == 1:
            return linear(x, weight, bias, accumulator)
        y = self.reduce(linear(x, weight, None, accumulator))
        # Added before the all-reduce, the bias would count t times.
        return y if bias is None else ops.add_bias(y, bias)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Leave the region: sum the ranks' partial results x [s, b, h] to [s, b, h]."""
        return x if self.group.size == 1 else ReduceFromTensorParallelRegion.apply(x, self.group)

    def sequence_offset(self, length: int) -> int:
        """Return the position in the sequence at which this rank's `length` positions begin."""
        return 0

    def hidden_mask(self, dropout: Dropout | None, p: float, layer: int, site: int,
                    like: torch.Tensor) -> torch.Tensor | None:
        """Return the mask bool [s, b, h] of hidden states `like`, or None without dropout.

        `Dropout.keep` describes the other arguments.
        """
        if dropout is None or p == 0:
            return None
        s, b, h = like.shape
        start = self.sequence_offset(s) * h
        return dropout.keep(p, layer, site, s * h, start=start).view(b, s, h).transpose(0, 1)
