"""Tensor and sequence parallelism: one layer's matrices divided among ranks.

Shoeybi et al. 2019, section 3: a pair of linear layers is cut by columns, then by rows, so that
what lies between them (attention heads, the MLP's wide part) needs no communication. Two
conjugate operators stand at the ends: f copies forward and sums gradients backward, g sums
forward and copies backward.

Korthikanti et al. 2022, section 4.2.2: outside those pairs every rank did the same work on the
same [s, b, h]. With --sequence-parallel each keeps s/t of the sequence there; f becomes an
all-gather (backward: reduce-scatter) and g a reduce-scatter (backward: all-gather), which
together move as many bytes as the all-reduces did. What is copied on every rank (norms, biases of
row-cut layers, positions) then sees only a part of the sequence, and its gradient is a part: the
optimizer sums these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.model import ops
from minimegatron.model.parameters import parameter

if TYPE_CHECKING:
    from minimegatron.parallel.grid import Group


class _F(torch.autograd.Function):
    """Into the cut part: every rank has x, and each contributes to the gradient of x."""

    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        # In place: it comes fresh from the linear layer's backward, and nobody else holds it.
        total = grad.contiguous()
        ctx.tp.all_reduce(total)
        return total, None


class _G(torch.autograd.Function):
    """Out of the cut part: the ranks' x are addends, and each addend has the sum's gradient."""

    @staticmethod
    def forward(ctx, x, tp):
        total = x.contiguous()  # in place where it is that already, as it is after a product
        if total is x:
            ctx.mark_dirty(x)
        tp.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _GBar(torch.autograd.Function):
    """The same, where each rank goes on with its own part of the sequence."""

    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return tp.reduce_scatter(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.tp.all_gather(grad), None


class TensorParallel:
    """How one layer's tensors lie on the tensor-parallel ranks, and the ways in and out.

    Outside the cut pairs x is [s, b, h] on every rank, or with --sequence-parallel [s/t, b, h].
    """

    def __init__(self, ctx: Context) -> None:
        self.group = ctx.grid.tp
        self.sequence = ctx.config.sequence_parallel and self.group.size > 1

    def column_linear(self, x: torch.Tensor, weight: nn.Parameter,
                      bias: nn.Parameter | None = None) -> torch.Tensor:
        """From outside, [s or s/t, b, in], to this rank's columns: [s, b, out/t]."""
        if self.group.size == 1:
            return ops.linear(x, weight, bias)
        if self.sequence:
            # The all-gather is inside: what waits for the backward pass is the part, which it
            # gathers again.
            return ops.linear(x, weight, bias, gather=self.group)
        return ops.linear(_F.apply(x, self.group), weight, bias)

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' addends [s, b, h]; returns [s or s/t, b, h]."""
        if self.group.size == 1:
            return x
        return (_GBar if self.sequence else _G).apply(x, self.group)

    def first_position(self, part: int) -> int:
        """Where in the sequence this rank's `part` positions begin, outside the cut pairs."""
        return self.group.index * part if self.sequence else 0


class ColumnLinear(nn.Module):
    """y_i = x A_i^T + b_i: rank i has these rows of A (columns of A^T) and computes these y."""

    def __init__(self, ctx: Context, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.tp = TensorParallel(ctx)
        self.weight = parameter(ctx, outputs, inputs, std=std, split=0)
        self.bias = parameter(ctx, outputs, split=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s or s/t, b, in] to [s, b, out/t]."""
        return self.tp.column_linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """y = sum_i x_i A_i^T + b: rank i has the inputs x_i, and the columns of A that meet them."""

    def __init__(self, ctx: Context, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.tp = TensorParallel(ctx)
        self.weight = parameter(ctx, outputs, inputs, std=std, split=1)
        self.bias = parameter(ctx, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, in/t] to [s or s/t, b, out]."""
        if self.tp.group.size == 1:
            return ops.linear(x, self.weight, self.bias)
        # The bias comes after the sum, or it would be added t times.
        return ops.add_bias(self.tp.leave(ops.linear(x, self.weight)), self.bias)


class VocabularyEmbedding(nn.Module):
    """Rank i has rows i V/t to (i + 1) V/t of the embedding; other tokens are its zeros."""

    def __init__(self, ctx: Context, vocab_size: int, width: int, std: float) -> None:
        super().__init__()
        self.tp = TensorParallel(ctx)
        self.weight = parameter(ctx, vocab_size, width, std=std, split=0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens int64 [s, b] to [s or s/t, b, h]."""
        if self.tp.group.size == 1:
            return ops.embedding(self.weight, tokens)
        rows, elsewhere = own_rows(tokens, self.weight.shape[0], self.tp.group)
        x = ops.embedding(self.weight, rows).masked_fill(elsewhere[..., None], 0.0)
        return self.tp.leave(x)


def own_rows(tokens: torch.Tensor, size: int, tp: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """(index into this rank's `size` rows, 0 where it lies elsewhere; bool: lies elsewhere)."""
    rows = tokens - tp.index * size
    elsewhere = (rows < 0) | (rows >= size)
    return rows.masked_fill(elsewhere, 0), elsewhere


class _CrossEntropy(torch.autograd.Function):
    """log(sum_v exp(z_v)) - z_label over logits z that are divided among ranks (section 3).

    [s, b] numbers travel instead of [s, b, V] logits. These are used up: all that is kept of them
    is their softmax, in their place.
    """

    @staticmethod
    def forward(ctx, logits, labels, tp):
        largest = logits.amax(-1, keepdim=True)
        tp.all_reduce(largest, dist.ReduceOp.MAX)
        shifted = logits.sub_(largest)  # exp cannot overflow
        rows, elsewhere = own_rows(labels, logits.shape[-1], tp)
        target = shifted.gather(-1, rows[..., None]).squeeze(-1).masked_fill(elsewhere, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(-1), target])  # one message for both
        tp.all_reduce(sums)
        total, target = sums
        ctx.save_for_backward(exponentials.div_(total[..., None]), rows, elsewhere)
        return total.log() - target

    @staticmethod
    def backward(ctx, grad):
        softmax, rows, elsewhere = ctx.saved_tensors
        # d loss / d z = softmax - onehot(label); only the label's owner subtracts.
        onehot = torch.where(elsewhere, 0.0, -grad)[..., None]
        return softmax.mul_(grad[..., None]).scatter_add_(-1, rows[..., None], onehot), None, None


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, tp: Group) -> torch.Tensor:
    """Loss of every token: logits [s, b, V/t] in fp32, which are used up, labels int64 [s, b].
    Returns [s, b], the same on every rank."""
    if tp.size == 1 and logits.device.type == "cpu":
        # Faster there. PyTorch's keeps two more copies of the logits at the peak, which a GPU
        # may not have room for: 2.5 GB of 8,192 tokens with GPT-2's vocabulary in bf16.
        return ops.cross_entropy(logits, labels)
    return _CrossEntropy.apply(logits, labels, tp)
