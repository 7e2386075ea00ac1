"""Attention that normalizes each head's queries and keys, as Qwen3's does.

Only --qk-layernorm imports this file. Letters as in attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from minimegatron.context import Context
from minimegatron.model import ops
from minimegatron.model.attention import Attention
from minimegatron.model.tensor_parallel import Norm


class HeadNorm(Norm):
    """A norm over the channels of a head, with the same weight [d] for all heads.

    Every rank normalizes its own heads, so gradients are summed over tensor-parallel ranks, too.
    """

    def __init__(self, ctx: Context) -> None:
        one_head = replace(ctx.config, hidden_size=ctx.config.kv_channels, sequence_parallel=False)
        super().__init__(replace(ctx, config=one_head))
        for spec in self.param_specs.values():
            spec.reduced_over += ("tp",) if ctx.grid.tp.size > 1 else ()


class NormalizedAttention(Attention):
    """Attention whose queries and keys are normalized before they are rotated."""

    def __init__(self, ctx: Context, *others: object) -> None:
        super().__init__(ctx, *others)
        self.rotary_dim, self.rotated = self.rotated, 0  # rotate after the norms
        self.q_layernorm, self.k_layernorm = HeadNorm(ctx), HeadNorm(ctx)

    def query_key_value(self, x: torch.Tensor, first: int) -> Sequence[torch.Tensor]:
        query, key, value = super().query_key_value(x, first)
        query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self.rotary_dim:
            query, key = (ops.rotary(each, first, self.rotary_dim, self.base)
                          for each in (query, key))
        return query, key, value
