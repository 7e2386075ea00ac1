"""Multi-head attention. Letters as in gpt.py: a attention heads, d size of a head, t ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from minimegatron.context import Context
from minimegatron.model import ops
from minimegatron.model.dropout import ATTENTION_PROBABILITIES, Dropout
from minimegatron.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear


class Attention(nn.Module):
    """Causal multi-head self-attention; each tensor-parallel rank computes a/t whole heads."""

    def __init__(self, ctx: Context, number: int, mask: torch.Tensor | None) -> None:
        """Create the QKV projection [3ad/t, h] and the output projection [h, ad/t].

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
        self.dropout_p, self.flash = config.attention_dropout, config.use_flash_attn
        # Laid out per head, (heads, 3, d): a rank's rows of the matrix are whole heads.
        width = (heads + 2 * groups) * self.head_dim
        self.linear_qkv = ColumnParallelLinear(ctx, config.hidden_size, width, std)
        self.linear_proj = RowParallelLinear(ctx, heads * self.head_dim, config.hidden_size)
        self.register_buffer("mask", mask, persistent=False)
        self.selective = config.recompute_granularity == "selective"

    def forward(self, x: torch.Tensor, dropout: Dropout | None) -> torch.Tensor:
        """Map hidden states x [s, b, h] to the same shape."""
        qkv = self.query_key_value(x)
        core = partial(self.core_attention, dropout)
        if self.selective:
            from minimegatron.model.recompute import checkpoint

            out = checkpoint(core, *qkv)
        else:
            out = core(*qkv)
        return self.linear_proj(out.reshape(len(out), -1, self.num_heads * self.head_dim))

    def query_key_value(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Project x [s, b, h] to this rank's queries, keys, and values, [s, ba/t, d] each."""
        qkv = self.linear_qkv(x)  # of the whole sequence, also with sequence parallelism
        return qkv.view(len(qkv), -1, 3, self.head_dim).unbind(2)

    def core_attention(self, dropout: Dropout | None, query: torch.Tensor, key: torch.Tensor,
                       value: torch.Tensor) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(d)) V; like query, key, and value, it is [s, ba/t, d].

        It has no parameters, so selective recomputation can run it again on its own.
        """
        if self.flash:
            return ops.flash_attention(query, key, value, self.num_heads)
        s, keep = query.shape[0], None
        if dropout is not None and self.dropout_p > 0:
            heads = torch.arange(self.num_heads, device=query.device) + self.first_head
            keep = dropout.keep(self.dropout_p, self.number, ATTENTION_PROBABILITIES, s * s, heads)
            keep = keep.view(-1, s, s)
        return ops.attention(query, key, value, self.mask[:, :s, :s], keep, self.dropout_p)
