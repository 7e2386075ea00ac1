"""Multi-head attention, with grouped queries and rotary positions where flags ask for them.

Letters as in gpt.py: a attention heads, G groups of them, d size of a head, t ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from minimegatron.context import Context, MicroBatch
from minimegatron.dropout import ATTENTION_PROBABILITIES, Dropout
from minimegatron.model import ops
from minimegatron.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear

if TYPE_CHECKING:
    from minimegatron.model.fp8 import Fp8


class Attention(nn.Module):
    """Causal multi-head self-attention; each tensor-parallel rank computes a/t whole heads.

    Each of the G key and value heads serves a/G query heads: one, unless flags group them.
    """

    def __init__(self, ctx: Context, number: int, mask: torch.Tensor | None,
                 fp8: Fp8 | None = None) -> None:
        """Create the QKV projection [(a + 2G)d/t, h] and the output projection [h, ad/t].

        `number` counts the model's layers from 1. All layers share one causal mask [1, s, s]; flash
        attention needs none.
        """
        super().__init__()
        config, tp = ctx.config, ctx.grid.tp
        self.number, self.head_dim = number, config.kv_channels
        heads, std = config.num_attention_heads, config.init_method_std
        groups = config.num_query_groups if config.group_query_attention else heads
        self.num_heads, self.sharing = heads // tp.size, heads // groups
        self.first_head = tp.index * self.num_heads
        self.rotated, self.base = 0, config.rotary_base  # channels of each head
        if config.position_embedding_type == "rope":
            self.rotated = int(self.head_dim * config.rotary_percent)
        self.dropout_p, self.flash = config.attention_dropout, config.use_flash_attn
        # Laid out per group, (G, a/G + 2, d): its queries, its key, and its value, so a rank's rows
        # are the whole groups of its heads, as in Megatron-LM.
        width = (heads + 2 * groups) * self.head_dim
        self.linear_qkv = ColumnParallelLinear(ctx, config.hidden_size, width, std, fp8=fp8)
        self.linear_proj = RowParallelLinear(
            ctx, heads * self.head_dim, config.hidden_size, fp8)
        self.register_buffer("mask", mask, persistent=False)
        self.selective = config.recompute_granularity == "selective"

    def forward(self, x: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """Map a micro-batch's hidden states x [s, b, h] to the same shape."""
        qkv = self.query_key_value(x, batch.first_position)
        core = partial(self.core_attention, batch.dropout)
        if self.selective:
            from minimegatron.model.recompute import checkpoint

            out = checkpoint(core, *qkv)
        else:
            out = core(*qkv)
        return self.linear_proj(out.reshape(len(out), -1, self.num_heads * self.head_dim))

    def query_key_value(self, x: torch.Tensor, first: int) -> Sequence[torch.Tensor]:
        """Project x [s, b, h], of positions from `first` on, to this rank's queries [s, ba/t, d],
        and to keys and values, [s, bG/t, d] each."""
        d = self.head_dim
        qkv = self.linear_qkv(x)  # of the whole sequence, also with sequence parallelism
        if self.sharing == 1 and not self.rotated:
            return qkv.view(len(qkv), -1, 3, d).unbind(2)  # three views, without a copy
        parts = qkv.view(len(qkv), -1, (self.sharing + 2) * d).split([self.sharing * d, d, d], -1)
        query, key, value = (part.unflatten(-1, (-1, d)).flatten(1, 2) for part in parts)
        if self.rotated:
            query = ops.rotary(query, first, self.rotated, self.base)
            key = ops.rotary(key, first, self.rotated, self.base)
        # Copies, so that what is saved for backward does not keep all of `qkv` alive.
        return query.contiguous(), key.contiguous(), value.contiguous()

    def core_attention(self, dropout: Dropout | None, query: torch.Tensor, key: torch.Tensor,
                       value: torch.Tensor) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(d)) V, [s, ba/t, d] like the queries.

        It has no parameters, so selective recomputation can run it again on its own. Flash
        attention reads each key and value head once for all of its queries. Materialized attention
        repeats them first, so sharing them saves it neither time nor memory.
        """
        if self.flash:
            return ops.flash_attention(query, key, value, self.num_heads)
        if self.sharing > 1:
            key, value = (each.repeat_interleave(self.sharing, 1) for each in (key, value))
        s, keep = query.shape[0], None
        if dropout is not None and self.dropout_p > 0:
            heads = torch.arange(self.num_heads, device=query.device) + self.first_head
            keep = dropout.keep(self.dropout_p, self.number, ATTENTION_PROBABILITIES, s * s, heads)
            keep = keep.view(-1, s, s)
        return ops.attention(query, key, value, self.mask[:, :s, :s], keep, self.dropout_p)
