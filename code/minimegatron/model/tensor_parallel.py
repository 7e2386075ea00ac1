"""Tensor parallelism: the matrices of one layer, partitioned across ranks, and its norms' copies.

Shoeybi et al. 2019, section 3: a column-parallel linear layer is followed by a row-parallel one, so
everything between them (attention heads, the MLP's hidden units) needs no communication. Two
conjugate operators, f and g, surround the pair (mappings.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.model import ops
from minimegatron.model.linear import embedding_lookup
from minimegatron.model.mappings import TensorParallel
from minimegatron.model.parameters import ParamSpec, add_parameters

if TYPE_CHECKING:
    from minimegatron.grid import Group
    from minimegatron.model.fp8 import Fp8


def make_tensor_parallel(ctx: Context) -> TensorParallel:
    """Return how layers enter and leave their tensor-parallel regions, as the flags ask."""
    if not ctx.config.sequence_parallel:
        return TensorParallel(ctx)
    if ctx.config.tp_comm_overlap:
        from minimegatron.model.tp_overlap import SequenceParallelWithOverlap

        return SequenceParallelWithOverlap(ctx)
    from minimegatron.model.sequence_parallel import SequenceParallel

    return SequenceParallel(ctx)


class Norm(nn.Module):
    """Layer normalization over h, or RMSNorm, which has neither a mean nor a bias.

    Every tensor-parallel rank holds a copy of its parameters [h].
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.epsilon, shape = ctx.config.layernorm_epsilon, (ctx.config.hidden_size,)
        is_rms = ctx.config.normalization == "RMSNorm"
        add_parameters(self, ctx, weight=ParamSpec(shape, init_value=1.0),
                       bias=None if is_rms else ParamSpec(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [s, b, h] to the same shape."""
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.epsilon)
        return ops.layer_norm(x, self.weight, self.bias, self.epsilon)


class ColumnParallelLinear(nn.Module):
    """y_i = x W_i^T + b_i, where rank i holds the rows W_i of W [out, in] and computes y_i."""

    def __init__(self, ctx: Context, inputs: int, outputs: int, init_std: float, blocks: int = 1,
                 fp8: Fp8 | None = None) -> None:
        """Create this rank's weight [out/t, in] and bias [out/t]; ParamSpec describes `blocks`.

        The GEMMs are in FP8 if the chunk's FP8 state is given.
        """
        super().__init__()
        self.tp = make_tensor_parallel(ctx) if fp8 is None else fp8.register(self, is_column=True)
        add_parameters(self, ctx, weight=ParamSpec((outputs, inputs), 0, init_std, blocks=blocks),
                       bias=(ParamSpec((outputs,), 0, blocks=blocks)
                             if ctx.config.add_bias_linear else None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [s, b, in] (or [s/t, b, in]) to [s, b, out/t]."""
        return self.tp.column_parallel_linear(x, self.weight, self.bias,
                                              self.param_specs["weight"].accumulator)


class RowParallelLinear(nn.Module):
    """y = sum_i x_i W_i^T + b, where rank i holds the columns W_i of W [out, in], and x_i."""

    def __init__(self, ctx: Context, inputs: int, outputs: int, fp8: Fp8 | None = None) -> None:
        """Create this rank's weight [out, in/t] and a copy of the bias [out]; FP8 as above."""
        super().__init__()
        self.tp = make_tensor_parallel(ctx) if fp8 is None else fp8.register(self, is_column=False)
        # The residual stream's variance must not grow with depth (Radford et al. 2019, GPT-2).
        std = ctx.config.init_method_std / math.sqrt(2 * ctx.config.num_layers)
        add_parameters(self, ctx, weight=ParamSpec((outputs, inputs), 1, std),
                       bias=ParamSpec((outputs,)) if ctx.config.add_bias_linear else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [s, b, in/t] to [s, b, out] (or [s/t, b, out])."""
        return self.tp.row_parallel_linear(x, self.weight, self.bias,
                                           self.param_specs["weight"].accumulator)


class VocabParallelEmbedding(nn.Module):
    """Embedding whose rows i V/t to (i + 1) V/t are on rank i; the others contribute zeros."""

    def __init__(self, ctx: Context, vocab_size: int, hidden_size: int, init_std: float) -> None:
        """Create this rank's weight [V/t, h]; V is padded to a multiple of t."""
        super().__init__()
        self.tp = make_tensor_parallel(ctx)
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
