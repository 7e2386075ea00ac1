"""GPT as a list of layers, of which each pipeline stage takes a contiguous slice.

A pre-norm transformer with learned positions and tied embeddings (GPT-2) unless flags replace its
parts with those of Llama, Qwen3, or Nemotron-4, in Megatron's layout [s, b, h] and with Megatron
core's parameter names. Shapes use the papers' letters: s sequence length, b micro-batch size, h
hidden size, a attention heads, d size of a head, V padded vocabulary, t tensor-parallel ranks. With
sequence parallelism, hidden states are [s/t, b, h] wherever a docstring says [s, b, h].
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from minimegatron.context import Context, MicroBatch, params_dtype
from minimegatron.dropout import ATTENTION_OUTPUT, EMBEDDING, MLP_OUTPUT
from minimegatron.model import ops
from minimegatron.model.attention import Attention
from minimegatron.model.linear import embedding_lookup
from minimegatron.model.parameters import ParamSpec, add_parameters, initialize_parameters
from minimegatron.model.tensor_parallel import (
    ColumnParallelLinear,
    Norm,
    RowParallelLinear,
    VocabParallelEmbedding,
    make_tensor_parallel,
    vocab_parallel_cross_entropy,
)

if TYPE_CHECKING:
    from minimegatron.model.fp8 import Fp8


class Embedding(nn.Module):
    """Word and position embeddings, followed by dropout. Rotary attention needs no positions."""

    def __init__(self, ctx: Context, vocab_size: int, is_first: bool = True) -> None:
        """Create word embeddings [V/t, h] and, on the first stage, position embeddings [max, h]."""
        super().__init__()
        config = ctx.config
        self.dropout_p, self.tp = config.hidden_dropout, make_tensor_parallel(ctx)
        self.word_embeddings = VocabParallelEmbedding(
            ctx, vocab_size, config.hidden_size, config.init_method_std)
        self.position_embeddings = None
        if is_first and config.position_embedding_type == "learned_absolute":
            shape = (config.max_position_embeddings, config.hidden_size)
            self.position_embeddings = nn.Module()
            add_parameters(self.position_embeddings, ctx,
                           weight=ParamSpec(shape, init_std=config.init_method_std))

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Map tokens [b, s] to hidden states [s, b, h]."""
        x = self.word_embeddings(batch.tokens.t())
        table = self.position_embeddings
        if table is not None:
            first = batch.first_position + self.tp.sequence_offset(x.shape[0])
            positions = torch.arange(first, first + x.shape[0], device=x.device)
            accumulator = table.param_specs["weight"].accumulator
            x = x + embedding_lookup(table.weight, positions, accumulator)[:, None]
        keep = self.tp.hidden_mask(batch.dropout, self.dropout_p, 0, EMBEDDING, x)
        return x if keep is None else ops.dropout(x, keep, self.dropout_p)


class MLP(nn.Module):
    """Two linear layers with an activation between them; the inner width is 4h by default.

    SwiGLU has a third layer, the gate: its matrix and the first one are one, [gate; up] on every
    rank.
    """

    def __init__(self, ctx: Context, fp8: Fp8 | None = None) -> None:
        super().__init__()
        config, width = ctx.config, ctx.config.ffn_hidden_size
        self.activation = (ops.swiglu if config.swiglu else
                           ops.squared_relu if config.squared_relu else ops.gelu)
        blocks = 2 if config.swiglu else 1
        self.linear_fc1 = ColumnParallelLinear(
            ctx, config.hidden_size, blocks * width, config.init_method_std, blocks, fp8)
        self.linear_fc2 = RowParallelLinear(ctx, width, config.hidden_size, fp8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states x [s, b, h] to the same shape."""
        return self.linear_fc2(self.activation(self.linear_fc1(x)))


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)), each with dropout before the sum."""

    def __init__(self, ctx: Context, number: int, mask: torch.Tensor | None,
                 fp8: Fp8 | None = None) -> None:
        """Create layer `number` of the whole model, counted from 1. All layers share one causal
        mask [1, s, s]; flash attention needs none. With FP8 state, GEMMs are in FP8."""
        super().__init__()
        self.number, self.dropout_p = number, ctx.config.hidden_dropout
        self.tp, attention = make_tensor_parallel(ctx), Attention
        if ctx.config.qk_layernorm:
            from minimegatron.model.qk_layernorm import NormalizedAttention as attention

        self.input_layernorm = Norm(ctx)
        self.self_attention = attention(ctx, number, mask, fp8)
        self.pre_mlp_layernorm = Norm(ctx)
        self.mlp = MLP(ctx, fp8)

    def forward(self, x: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """Map a micro-batch's hidden states x [s, b, h] to the same shape."""
        dropout = batch.dropout
        keep = self.tp.hidden_mask(dropout, self.dropout_p, self.number, ATTENTION_OUTPUT, x)
        # No name for the attention's output: it would occupy memory until the MLP is done.
        x = ops.dropout_add(self.self_attention(self.input_layernorm(x), batch), x, keep,
                            self.dropout_p)
        keep = self.tp.hidden_mask(dropout, self.dropout_p, self.number, MLP_OUTPUT, x)
        return ops.dropout_add(self.mlp(self.pre_mlp_layernorm(x)), x, keep, self.dropout_p)


class Stage(nn.Module):
    """One chunk of a pipeline stage: some layers (perhaps none), the embedding on the first stage,
    and the loss on the last. With interleaving, a stage has several chunks, otherwise one."""

    def __init__(self, ctx: Context, vocab_size: int, layers: range, is_first: bool = True,
                 is_last: bool = True) -> None:
        """Create the stage with the given layers of the whole model (from 0), and initialize it."""
        super().__init__()
        config = ctx.config
        self.is_first, self.is_last, self.tp = is_first, is_last, make_tensor_parallel(ctx)
        self.is_tied = not config.untie_embeddings_and_output_weights
        if is_first or (is_last and self.is_tied):
            self.embedding = Embedding(ctx, vocab_size, is_first)
            # The output layer of the last stage is tied to the word embedding of the first.
            spec = self.embedding.word_embeddings.param_specs["weight"]
            spec.tied, spec.tied_copy = self.is_tied and is_first != is_last, not is_first
        self.decoder = nn.Module()
        mask = (None if config.use_flash_attn else
                ops.causal_mask(config.seq_length, ctx.device.torch_device, params_dtype(config)))
        self.checkpointing = self.fp8 = None
        if config.fp8_format is not None:
            from minimegatron.model.fp8 import Fp8

            self.fp8 = Fp8(ctx, (index + 1 for index in layers))
        self.decoder.layers = nn.ModuleDict(
            {str(index): TransformerLayer(ctx, index + 1, mask,
                                          self.fp8 and self.fp8.of_layer(index + 1))
             for index in layers})
        if config.recompute_granularity == "full" or config.cpu_offloading_num_layers:
            from minimegatron.model.recompute import layer_runner

            self.checkpointing = layer_runner(ctx)
        if is_last:
            self.decoder.final_layernorm = Norm(ctx)
        if is_last and not self.is_tied:
            self.output_layer = VocabParallelEmbedding(
                ctx, vocab_size, config.hidden_size, config.init_method_std)
        if ctx.device.has_values:
            initialize_parameters(self, config.seed, ctx.grid.tp)

    def forward(self, x: torch.Tensor | None, batch: MicroBatch) -> torch.Tensor:
        """Run one micro-batch: map the previous stage's output x [s, b, h] to the same shape.

        The first stage ignores x. The last stage returns the sum of the losses of the tokens that
        the loss mask selects (fp32, one element, the same on every tensor-parallel rank).
        """
        if self.is_first:
            x = self.embedding(batch)
        layers = [partial(layer, batch=batch) for layer in self.decoder.layers.values()]
        if self.checkpointing is not None:
            x = self.checkpointing(layers, x)
        else:
            for layer in layers:
                x = layer(x)
        return self.loss(self.logits(x), batch) if self.is_last else x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states x [s, b, h] to logits [s, b, V/t] with the output layer's matrix."""
        words = self.embedding.word_embeddings if self.is_tied else self.output_layer
        return self.tp.column_parallel_linear(self.decoder.final_layernorm(x), words.weight,
            accumulator=words.param_specs["weight"].accumulator)

    def end_step(self) -> None:
        """After the last backward pass of a step: let FP8's scales follow what was seen."""
        if self.fp8 is not None:
            self.fp8.end_step()

    def loss(self, logits: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """Return the sum of the cross-entropies of logits [s, b, V/t], fp32, one element."""
        labels = batch.labels.t().contiguous()
        losses = vocab_parallel_cross_entropy(logits.float(), labels, self.tp.group)
        return (losses * batch.loss_mask.t()).sum()
