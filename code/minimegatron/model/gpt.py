"""GPT as a list of layers, of which a pipeline stage takes a slice.

Pre-norm transformer with learned positions and tied embeddings, in Megatron's layout [s, b, h] and
with Megatron core's parameter names. A layer's linears are divided among tensor-parallel ranks
(tensor_parallel.py); with sequence parallelism s below means this rank's part of the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from minimegatron.context import Context
from minimegatron.dtypes import params_dtype
from minimegatron.model import dropout, ops
from minimegatron.model.dropout import Dropout
from minimegatron.model.parameters import draw_weights, parameter
from minimegatron.model.recompute import Recomputation, recompute
from minimegatron.model.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    TensorParallel,
    VocabularyEmbedding,
    cross_entropy,
)


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass reads. tokens, labels: int64 [b, s]; loss_mask: fp32 [b, s]."""

    tokens: torch.Tensor | None  # None on stages between the first and the last
    labels: torch.Tensor | None
    loss_mask: torch.Tensor | None
    dropout: Dropout | None  # None: nothing is dropped


class Norm(nn.Module):
    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.epsilon = ctx.config.layernorm_epsilon
        self.weight = parameter(ctx, ctx.config.hidden_size, fill=1.0)
        self.bias = parameter(ctx, ctx.config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.epsilon)


class Embedding(nn.Module):
    """Tokens [b, s] to hidden states [s, b, h].

    with_positions: false on a last stage that holds only the output matrix.
    """

    def __init__(self, ctx: Context, vocab_size: int, with_positions: bool = True) -> None:
        super().__init__()
        config = ctx.config
        self.p, self.tp = config.hidden_dropout, TensorParallel(ctx)
        self.word_embeddings = VocabularyEmbedding(
            ctx, vocab_size, config.hidden_size, config.init_method_std)
        if with_positions:
            self.position_embeddings = nn.Module()
            self.position_embeddings.weight = parameter(
                ctx, config.max_position_embeddings, config.hidden_size,
                std=config.init_method_std)

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        x = self.word_embeddings(batch.tokens.t())
        first = self.tp.first_position(x.shape[0])
        positions = torch.arange(first, first + x.shape[0], device=x.device)
        x = x + ops.embedding(self.position_embeddings.weight, positions)[:, None]
        keep = hidden_mask(batch.dropout, self.p, 0, dropout.EMBEDDING, x, self.tp)
        return x if keep is None else ops.dropout(x, keep, self.p)


class Attention(nn.Module):
    def __init__(self, ctx: Context, layer: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        config, tp = ctx.config, ctx.grid.tp
        self.layer, self.width = layer, config.kv_channels
        self.heads = config.num_attention_heads // tp.size
        self.first_head = tp.index * self.heads
        self.p, self.flash = config.attention_dropout, config.use_flash_attn
        self.selective = config.recompute_granularity == "selective"
        inner, std = config.num_attention_heads * self.width, config.init_method_std
        # Laid out per head, (heads, 3, width): a tensor-parallel slice holds whole heads.
        self.linear_qkv = ColumnLinear(ctx, config.hidden_size, 3 * inner, std)
        self.linear_proj = RowLinear(ctx, inner, config.hidden_size, output_std(ctx))
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor, noise: Dropout | None) -> torch.Tensor:
        qkv = self.linear_qkv(x)  # the whole sequence for this rank's heads
        s, b, _ = qkv.shape
        qkv = qkv.view(s, b * self.heads, 3, self.width)
        core = self.core(noise)
        out = recompute(core, *qkv.unbind(2)) if self.selective else core(*qkv.unbind(2))
        return self.linear_proj(out.reshape(s, b, self.heads * self.width))

    def core(self, noise: Dropout | None) -> Callable[..., torch.Tensor]:
        """Core attention, without weights: query, key, value [s, b*heads, d] to the same shape."""
        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            if self.flash:
                return ops.flash_attention(query, key, value, self.heads)
            s, keep = query.shape[0], None
            if noise is not None and self.p > 0:
                heads = torch.arange(self.heads, device=query.device) + self.first_head
                keep = noise.keep(self.p, self.layer, dropout.ATTENTION_PROBABILITIES, s * s, heads)
                keep = keep.view(-1, s, s)
            return ops.attention(query, key, value, self.mask[:, :s, :s], keep, self.p)
        return attend


class MLP(nn.Module):
    def __init__(self, ctx: Context) -> None:
        super().__init__()
        config = ctx.config
        self.linear_fc1 = ColumnLinear(
            ctx, config.hidden_size, config.ffn_hidden_size, config.init_method_std)
        self.linear_fc2 = RowLinear(
            ctx, config.ffn_hidden_size, config.hidden_size, output_std(ctx))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(ops.gelu(self.linear_fc1(x)))


class TransformerLayer(nn.Module):
    """One layer; `number` counts from 1 over the whole model."""

    def __init__(self, ctx: Context, number: int, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.number, self.p, self.tp = number, ctx.config.hidden_dropout, TensorParallel(ctx)
        self.input_layernorm = Norm(ctx)
        self.self_attention = Attention(ctx, number, mask)
        self.pre_mlp_layernorm = Norm(ctx)
        self.mlp = MLP(ctx)

    def forward(self, x: torch.Tensor, noise: Dropout | None) -> torch.Tensor:
        keep = hidden_mask(noise, self.p, self.number, dropout.ATTENTION_OUTPUT, x, self.tp)
        x = ops.dropout_add(self.self_attention(self.input_layernorm(x), noise), x, keep, self.p)
        keep = hidden_mask(noise, self.p, self.number, dropout.MLP_OUTPUT, x, self.tp)
        return ops.dropout_add(self.mlp(self.pre_mlp_layernorm(x)), x, keep, self.p)


class Stage(nn.Module):
    """A contiguous slice of the model: some layers (perhaps none), and the ends it owns.

    forward(x, batch): x is the previous stage's output [s, b, h] (None on the first stage).
    Returns hidden states [s, b, h], or on the last stage the loss: the mean over the tokens that
    the loss mask keeps (fp32, one element; the same on every tensor-parallel rank).
    """

    def __init__(self, ctx: Context, vocab_size: int, layers: range, is_first: bool = True,
                 is_last: bool = True) -> None:
        super().__init__()
        self.is_first, self.is_last, self.tp = is_first, is_last, TensorParallel(ctx)
        if self.is_first or self.is_last:
            self.embedding = Embedding(ctx, vocab_size, with_positions=is_first)
            # The last stage's output matrix is the first one's word embedding once more.
            self.embedding.word_embeddings.weight.is_tied_copy = not is_first
        self.decoder = nn.Module()
        config = ctx.config  # one mask serves all layers
        mask = (None if config.use_flash_attn else
                ops.causal_mask(config.seq_length, ctx.device.torch_device, params_dtype(config)))
        self.decoder.layers = nn.ModuleDict(
            {str(index): TransformerLayer(ctx, index + 1, mask) for index in layers})
        self.recomputation = Recomputation(ctx)
        if self.is_last:
            self.decoder.final_layernorm = Norm(ctx)
        draw_weights(self, config.seed, ctx.grid.tp)

    def forward(self, x: torch.Tensor | None, batch: MicroBatch) -> torch.Tensor:
        if self.is_first:
            x = self.embedding(batch)
        layers = [partial(layer, noise=batch.dropout) for layer in self.decoder.layers.values()]
        x = self.recomputation.run(layers, x)
        return self.loss(self.logits(x), batch) if self.is_last else x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[s, b, h] to [s, b, V/t]; the output matrix is the word embedding."""
        return self.tp.column_linear(self.decoder.final_layernorm(x),
                                     self.embedding.word_embeddings.weight)

    def loss(self, logits: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        losses = cross_entropy(logits.float(), batch.labels.t().contiguous(), self.tp.group)
        mask = batch.loss_mask.t()
        return (losses * mask).sum() / mask.sum()


def hidden_mask(noise: Dropout | None, p: float, layer: int, site: int, like: torch.Tensor,
                tp: TensorParallel) -> torch.Tensor | None:
    """The dropout mask of hidden states `like` [s, b, h], or None when nothing is dropped."""
    if noise is None or p == 0:
        return None
    s, b, h = like.shape
    start = tp.first_position(s) * h
    return noise.keep(p, layer, site, s * h, start=start).view(b, s, h).transpose(0, 1)


def output_std(ctx: Context) -> float:
    """Projections onto the residual stream start smaller, so that its variance does not grow
    with depth (GPT-2; std / sqrt(2L))."""
    return ctx.config.init_method_std / math.sqrt(2 * ctx.config.num_layers)
