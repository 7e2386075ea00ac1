"""Attention and a Transformer layer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from minite.module import LayerNormLinear, LayerNormMLP, Linear

MASKS = ("causal", "no_mask", "padding", "arbitrary")


class DotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(d)) v in the precision of the inputs."""

    def __init__(self, num_attention_heads: int, kv_channels: int,
                 num_gqa_groups: int | None = None, attention_dropout: float = 0.0,
                 attn_mask_type: str = "causal") -> None:
        super().__init__()
        self.attention_dropout, self.attn_mask_type = attention_dropout, attn_mask_type

    def forward(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor,
                attention_mask: Tensor | None = None, attn_mask_type: str | None = None) -> Tensor:
        """Compute attention.

        Args:
            query_layer: [s, b, heads, d].
            key_layer: as query_layer, with num_gqa_groups heads.
            value_layer: as key_layer.
            attention_mask: True where a key is masked; broadcast to [b, heads, query, key].
            attn_mask_type: overrides the constructor's.

        Returns:
            [s, b, heads * d].

        Raises:
            ValueError: the mask type is unknown, or needs an attention_mask.
        """
        mask_type = attn_mask_type or self.attn_mask_type
        if mask_type not in MASKS:
            raise ValueError(f"attn_mask_type={mask_type!r}: expected one of {', '.join(MASKS)}")
        if attention_mask is None and mask_type not in ("causal", "no_mask"):
            raise ValueError(f"attn_mask_type={mask_type!r} needs attention_mask")
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query_layer, key_layer, value_layer))
        visible = None if mask_type in ("causal", "no_mask") else ~attention_mask
        y = F.scaled_dot_product_attention(
            q, k, v, visible, self.attention_dropout if self.training else 0.0,
            is_causal=mask_type == "causal", enable_gqa=q.shape[1] != k.shape[1])
        return y.permute(2, 0, 1, 3).flatten(2)


class MultiheadAttention(nn.Module):
    """Self-attention with its projections.

    Args:
        fuse_qkv_params: whether queries, keys, and values share one weight, whose rows are ordered
            by group: queries, key, value. Otherwise there are query_weight, key_weight, and
            value_weight.
        options: bias, params_dtype, and device, as in Linear.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: int | None = None,
                 attention_dropout: float = 0.1, layernorm_epsilon: float = 1e-5, *,
                 init_method: Any = None, output_layer_init_method: Any = None,
                 attn_mask_type: str = "causal", num_gqa_groups: int | None = None,
                 input_layernorm: bool = False, fuse_qkv_params: bool = False, **options: Any
                 ) -> None:
        super().__init__()
        self.heads, self.groups = num_attention_heads, num_gqa_groups or num_attention_heads
        if kv_channels is None and hidden_size % self.heads:
            raise ValueError(f"{hidden_size=}: not divisible by {num_attention_heads=}")
        if self.heads % self.groups:
            raise ValueError(f"{num_gqa_groups=}: does not divide {num_attention_heads=}")
        self.channels, self.fused = kv_channels or hidden_size // self.heads, fuse_qkv_params
        q, kv = self.heads * self.channels, self.groups * self.channels
        sizes = hidden_size, q + 2 * kv
        first = {"init_method": init_method, **options,
                 "parameters_split": None if self.fused else {"query": q, "key": kv, "value": kv}}
        if input_layernorm:
            self.layernorm_qkv = LayerNormLinear(*sizes, layernorm_epsilon, **first)
        else:
            self.qkv = Linear(*sizes, **first)
        self.core_attention = DotProductAttention(
            self.heads, self.channels, self.groups, attention_dropout, attn_mask_type)
        self.proj = Linear(q, hidden_size, init_method=output_layer_init_method, **options)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *,
                attn_mask_type: str | None = None, is_first_microbatch: bool | None = None
                ) -> Tensor:
        """Return [s, b, h]."""
        project = self.layernorm_qkv if hasattr(self, "layernorm_qkv") else self.qkv
        qkv = project(hidden_states, is_first_microbatch)
        if self.fused:
            groups = qkv.unflatten(-1, (self.groups, -1, self.channels))
            q, k, v = (x.flatten(-3, -2) for x in groups.tensor_split((-2, -1), -2))
        else:
            heads = qkv.unflatten(-1, (-1, self.channels))
            q, k, v = heads.split((self.heads, self.groups, self.groups), -2)
        y = self.core_attention(q, k, v, attention_mask, attn_mask_type)
        return self.proj(y, is_first_microbatch)


class TransformerLayer(nn.Module):
    """Attention and an MLP, each with a norm before it and a residual connection around it.

    Args:
        options: bias, params_dtype, and device, as in Linear.
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int,
                 num_gqa_groups: int | None = None, layernorm_epsilon: float = 1e-5,
                 hidden_dropout: float = 0.1, attention_dropout: float = 0.1,
                 init_method: Any = None, output_layer_init_method: Any = None,
                 layer_number: int | None = None, kv_channels: int | None = None,
                 self_attn_mask_type: str = "causal", *, fuse_qkv_params: bool = False,
                 activation: str = "gelu", **options: Any) -> None:
        super().__init__()
        options |= {"init_method": init_method,
                    "output_layer_init_method": output_layer_init_method}
        self.layer_number, self.hidden_dropout = layer_number, hidden_dropout
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon,
            attn_mask_type=self_attn_mask_type, num_gqa_groups=num_gqa_groups,
            input_layernorm=True, fuse_qkv_params=fuse_qkv_params, **options)
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size, layernorm_epsilon,
                                          activation=activation, **options)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *,
                self_attn_mask_type: str | None = None, is_first_microbatch: bool | None = None
                ) -> Tensor:
        """Return [s, b, h]."""
        y = self.self_attention(hidden_states, attention_mask, attn_mask_type=self_attn_mask_type,
                                is_first_microbatch=is_first_microbatch)
        x = hidden_states + F.dropout(y, self.hidden_dropout, self.training)
        y = self.layernorm_mlp(x, is_first_microbatch)
        return x + F.dropout(y, self.hidden_dropout, self.training)
