"""Tensor parallelism: the matrices of one layer, partitioned across ranks.

Shoeybi et al. 2019, section 3: a column-parallel linear layer is followed by a row-parallel one, so
everything between them (attention heads, the MLP's hidden units) needs no communication. Two
conjugate operators surround the pair: f copies its input in the forward pass and all-reduces the
gradient in the backward pass, g does the reverse (Korthikanti et al. 2022 call it f-bar).
Sequence parallelism replaces both (see sequence_parallel.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.model import ops
from minimegatron.model.linear import embedding_lookup, linear
from minimegatron.model.parameters import ParamSpec, add_parameters, output_init_std

if TYPE_CHECKING:
    from minimegatron.model.dropout import Dropout
    from minimegatron.parallel.ddp import GradAccumulator
    from minimegatron.parallel.grid import Group


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

    Outside the region, hidden states are [s, b, h] on every rank, or [s/t, b, h] with sequence
    parallelism.
    """

    def __init__(self, ctx: Context) -> None:
        self.group, self.sequence = ctx.grid.tp, None
        if ctx.config.sequence_parallel and self.group.size > 1:
            from minimegatron.model.sequence_parallel import SequenceParallel

            self.sequence = SequenceParallel(self.group, ctx.config.tp_comm_overlap)

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None = None,
                               accumulator: GradAccumulator | None = None) -> torch.Tensor:
        """Enter the region through a linear layer with this rank's weight [out/t, in].

        Maps x [s, b, in], or [s/t, b, in] with sequence parallelism, to [s, b, out/t].
        """
        if self.sequence is not None:
            return self.sequence.column_parallel_linear(x, weight, bias, accumulator)
        if self.group.size > 1:
            x = CopyToTensorParallelRegion.apply(x, self.group)
        return linear(x, weight, bias, accumulator)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Leave the region: sum the ranks' partial results x [s, b, h].

        Returns [s, b, h], or [s/t, b, h] with sequence parallelism.
        """
        if self.sequence is not None:
            return self.sequence.reduce(x)
        return x if self.group.size == 1 else ReduceFromTensorParallelRegion.apply(x, self.group)

    def sequence_offset(self, length: int) -> int:
        """Return the position in the sequence at which this rank's `length` positions begin."""
        return 0 if self.sequence is None else self.group.index * length

    def hidden_mask(self, dropout: Dropout | None, p: float, layer: int, site: int,
                    like: torch.Tensor) -> torch.Tensor | None:
        """Return the mask bool [s, b, h] of hidden states `like`, or None without dropout.

        Under sequence parallelism, a rank draws the bits of its positions in the sequence;
        `Dropout.keep` describes the other arguments.
        """
        if dropout is None or p == 0:
            return None
        s, b, h = like.shape
        start = self.sequence_offset(s) * h
        return dropout.keep(p, layer, site, s * h, start=start).view(b, s, h).transpose(0, 1)


class ColumnParallelLinear(nn.Module):
    """y_i = x W_i^T + b_i, where rank i holds the rows W_i of W [out, in] and computes y_i."""

    def __init__(self, ctx: Context, inputs: int, outputs: int, init_std: float) -> None:
        """Create this rank's weight [out/t, in] and bias [out/t]."""
        super().__init__()
        self.tp = TensorParallel(ctx)
        add_parameters(self, ctx, weight=ParamSpec((outputs, inputs), 0, init_std),
                       bias=ParamSpec((outputs,), 0) if ctx.config.add_bias_linear else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [s, b, in] (or [s/t, b, in]) to [s, b, out/t]."""
        return self.tp.column_parallel_linear(x, self.weight, self.bias,
                                              self.param_specs["weight"].accumulator)


class RowParallelLinear(nn.Module):
    """y = sum_i x_i W_i^T + b, where rank i holds the columns W_i of W [out, in], and x_i."""

    def __init__(self, ctx: Context, inputs: int, outputs: int) -> None:
        """Create this rank's weight [out, in/t] and a copy of the bias [out]."""
        super().__init__()
        self.tp = TensorParallel(ctx)
        add_parameters(self, ctx, weight=ParamSpec((outputs, inputs), 1, output_init_std(ctx)),
                       bias=ParamSpec((outputs,)) if ctx.config.add_bias_linear else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [s, b, in/t] to [s, b, out] (or [s/t, b, out])."""
        accumulator = self.param_specs["weight"].accumulator
        if self.tp.group.size == 1:
            return linear(x, self.weight, self.bias, accumulator)
        # The bias is added after the all-reduce, which would sum it t times.
        if self.tp.sequence is not None:
            y = self.tp.sequence.row_parallel_linear(x, self.weight, accumulator)
        else:
            y = self.tp.reduce(linear(x, self.weight, None, accumulator))
        return y if self.bias is None else ops.add_bias(y, self.bias)


class VocabParallelEmbedding(nn.Module):
    """Embedding whose rows i V/t to (i + 1) V/t are on rank i; the others contribute zeros."""

    def __init__(self, ctx: Context, vocab_size: int, hidden_size: int, init_std: float) -> None:
        """Create this rank's weight [V/t, h]; V is padded to a multiple of t."""
        super().__init__()
        self.tp = TensorParallel(ctx)
        add_parameters(self, ctx, weight=ParamSpec((vocab_size, hidden_size), 0, init_std))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens, int64 [s, b], to [s, b, h] (or [s/t, b, h])."""
        accumulator = self.param_specs["weight"].accumulator
        if self.tp.group.size == 1:
            return embedding_lookup(self.weight, tokens, accumulator)
        rows, elsewhere = local_rows(tokens, self.weight.shape[0], self.tp.group)
        x = embedding_lookup(self.weight, rows, accumulator).masked_fill(elsewhere[..., None], 0.0)
        return self.tp.reduce(x)


def local_rows(tokens: torch.Tensor, size: int, tp: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Translate tokens (int64 [..]) into rows of this rank's V/t = `size` rows of the vocabulary.

    Returns the rows, int64 [..], 0 for tokens of other ranks; and bool [..], true for those.
    """
    rows = tokens - tp.index * size
    elsewhere = (rows < 0) | (rows >= size)
    return rows.masked_fill(elsewhere, 0), elsewhere


class VocabParallelCrossEntropy(torch.autograd.Function):
    """log(sum_v exp(z_v)) - z_label over logits z that are partitioned across ranks (section 3).

    The ranks exchange three [s, b] tensors instead of all-gathering logits [s, b, V]. The logits
    are overwritten with their softmax, which is all that the backward pass needs.
    """

    @staticmethod
    def forward(ctx, logits, labels, tp):
        largest = logits.amax(-1, keepdim=True)
        tp.all_reduce(largest, dist.ReduceOp.MAX)
        shifted = logits.sub_(largest)  # exp cannot overflow
        rows, elsewhere = local_rows(labels, logits.shape[-1], tp)
        target = shifted.gather(-1, rows[..., None]).squeeze(-1).masked_fill(elsewhere, 0.0)
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(-1), target])  # one all-reduce for both
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


def vocab_parallel_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, tp: Group
                                 ) -> torch.Tensor:
    """Return every token's loss, fp32 [s, b], the same on all ranks.

    The logits, fp32 [s, b, V/t], are overwritten; labels are int64 [s, b].
    """
    if tp.size == 1 and logits.device.type == "cpu":
        # Faster on a CPU. On a GPU its two extra copies of the logits may not fit: they are 2.5 GB
        # for 8,192 tokens with GPT-2's vocabulary in bf16.
        return ops.cross_entropy(logits, labels)
    return VocabParallelCrossEntropy.apply(logits, labels, tp)
