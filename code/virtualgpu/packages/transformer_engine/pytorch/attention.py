"""Attention of Transformer Engine: cuDNN's fused kernel, or FlashAttention before Hopper."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from virtualgpu.core.card import CUDNN, FLASH
from virtualgpu.packages.flash_attn.layers.rotary import apply_rotary_emb
from virtualgpu.packages.refusals import refuse, used
from virtualgpu.pytorch.attention import HALF
from virtualgpu.pytorch.packed import active_gpu, attend, lengths

from .module import LayerNormLinear, Linear, one_gpu

WINDOWS = {"causal": 0, "no_mask": -1, "causal_bottom_right": 0, "padding_causal": 0,
           "padding": -1}  # keys after a query's own position that it sees
HOPPER = 9  # compute capability


class RotaryPositionEmbedding(nn.Module):
    """The angles of rotary embeddings, [tokens, 1, 1, width]."""

    def __init__(self, dim: int, rotary_percent: float = 1.0, seq_len_interpolation_factor=None,
                 pretrained_max_position_embeddings=None, rotary_base: float = 10000.0,
                 interleaved: bool = False) -> None:
        super().__init__()
        refuse("RotaryPositionEmbedding",
               seq_len_interpolation_factor=seq_len_interpolation_factor,
               interleaved=interleaved or None)
        self.dim, self.base = int(dim * rotary_percent), rotary_base

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        powers = torch.arange(0, self.dim, 2, device="cuda", dtype=torch.float32) / self.dim
        positions = torch.arange(max_seq_len, device="cuda", dtype=torch.float32) + offset
        angles = torch.outer(positions, self.base ** -powers)
        return torch.cat((angles, angles), -1)[:, None, None]


def apply_rotary_pos_emb(t: Tensor, freqs: Tensor, tensor_format: str = "sbhd",
                         fused: bool = False, **options) -> Tensor:
    """Rotate t [tokens, batch, heads, width] by angles [tokens, 1, 1, width], in one kernel."""
    refuse("apply_rotary_pos_emb", **options)
    if tensor_format not in ("sbhd", "bshd"):
        refuse("apply_rotary_pos_emb", tensor_format=tensor_format)
    angles = freqs[:, 0, 0, :freqs.shape[-1] // 2]
    x = t if tensor_format == "bshd" else t.transpose(0, 1)
    angles = angles[:x.shape[1]]
    out = apply_rotary_emb(x, angles.cos(), angles.sin())
    return out if tensor_format == "bshd" else out.transpose(0, 1)


class DotProductAttention(nn.Module):
    """Attention of queries, keys, and values."""

    def __init__(self, num_attention_heads: int, kv_channels: int,
                 num_gqa_groups: int | None = None, attention_dropout: float = 0.1,
                 qkv_format: str = "sbhd", attn_mask_type: str = "causal", window_size=None,
                 softmax_scale: float | None = None, attention_type: str = "self",
                 layer_number: int | None = None, cp_group=None, softmax_type: str = "vanilla",
                 **options) -> None:
        super().__init__()
        options = {key: value for key, value in options.items()
                   if key not in ("cp_global_ranks", "cp_stream", "cp_comm_type")}
        one_gpu("DotProductAttention", options)
        refuse("DotProductAttention", cp_group=cp_group,
               softmax_type=None if softmax_type == "vanilla" else softmax_type)
        self.dropout, self.qkv_format = attention_dropout, qkv_format
        self.attn_mask_type, self.window_size = attn_mask_type, window_size
        self.softmax_scale = softmax_scale

    def forward(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor,
                attention_mask: Tensor | None = None, qkv_format: str | None = None,
                cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None,
                max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
                attn_mask_type: str | None = None, window_size=None, **options) -> Tensor:
        """Return the attention's output, with heads and width in one dimension.

        Args:
            query_layer: [tokens, batch, heads, width] for sbhd; key and value may have fewer heads.
            key_layer: see query_layer.
            value_layer: see query_layer.
            attention_mask: not modeled; the type of the mask decides.
            qkv_format: sbhd, bshd, or thd (sequences one after the other).
            cu_seqlens_q: cumulative lengths, for thd.
            cu_seqlens_kv: see cu_seqlens_q.
            max_seqlen_q: not needed.
            max_seqlen_kv: not needed.
            attn_mask_type: causal, no_mask, causal_bottom_right, or padding variants for thd.
            window_size: keys before and after a query's own position that it sees.
            options: refused if given.
        """
        used("transformer_engine")
        mask, layout = attn_mask_type or self.attn_mask_type, qkv_format or self.qkv_format
        refuse("DotProductAttention", attention_mask=attention_mask, **{
            key: value for key, value in options.items() if value not in (False, "no_bias", True)})
        if mask not in WINDOWS or (mask.startswith("padding") and layout != "thd"):
            refuse("DotProductAttention", attn_mask_type=mask)
        left, right = window_size or self.window_size or (-1, WINDOWS[mask])
        given = query_layer, key_layer, value_layer
        dropout = self.dropout if self.training else 0.0
        if layout == "thd":
            gpu = active_gpu()
            rows = lengths(gpu, cu_seqlens_q, len(query_layer))
            columns = lengths(gpu, cu_seqlens_kv, len(key_layer))
        else:
            given = given if layout == "bshd" else [one.transpose(0, 1) for one in given]
            rows, columns = ([one.shape[1]] * len(one) for one in given[:2])
        if query_layer.dtype not in HALF:
            out = self._unfused(given, left, right, dropout, layout)
        else:
            kernel = CUDNN if torch.cuda.get_device_capability()[0] >= HOPPER else FLASH
            out, _ = attend(*given, rows, columns, (left, right), scale=self.softmax_scale,
                            dropout=dropout, kernel=kernel)
        return (out.transpose(0, 1) if layout == "sbhd" else out).flatten(-2)

    def _unfused(self, given, left: int, right: int, dropout: float, layout: str) -> Tensor:
        """Return attention in fp32, which no fused kernel computes."""
        if layout == "thd" or left >= 0:
            refuse("DotProductAttention in fp32", qkv_format=layout, window_size=(left, right))
        query, key, value = (one.transpose(1, 2) for one in given)
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=right == 0, scale=self.softmax_scale,
            enable_gqa=query.shape[1] != key.shape[1]).transpose(1, 2)


class MultiheadAttention(nn.Module):
    """Self-attention with its linear layers, and optionally a normalization before them."""

    def __init__(self, hidden_size: int, num_attention_heads: int, kv_channels: int | None = None,
                 attention_dropout: float = 0.1, layernorm_epsilon: float = 1e-5, init_method=None,
                 output_layer_init_method=None, attn_mask_type: str = "causal", window_size=None,
                 num_gqa_groups: int | None = None, bias: bool = True, return_bias: bool = False,
                 input_layernorm: bool = False, normalization: str = "LayerNorm",
                 zero_centered_gamma: bool = False, params_dtype=None, device="cuda",
                 qkv_format: str = "sbhd", layer_number: int | None = None, **options) -> None:
        super().__init__()
        options = {key: value for key, value in options.items()
                   if key not in ("fuse_qkv_params", "qkv_weight_interleaved")}
        one_gpu("MultiheadAttention", options)
        width = kv_channels or hidden_size // num_attention_heads
        self.heads, self.groups = num_attention_heads, num_gqa_groups or num_attention_heads
        self.width, self.qkv_format = width, qkv_format
        kind = {"bias": bias, "params_dtype": params_dtype, "device": device}
        size = (self.heads + 2 * self.groups) * width
        if input_layernorm:
            self.layernorm_qkv = LayerNormLinear(
                hidden_size, size, layernorm_epsilon, normalization=normalization,
                init_method=init_method, zero_centered_gamma=zero_centered_gamma, **kind)
        else:
            self.qkv = Linear(hidden_size, size, init_method=init_method, **kind)
        self.core_attention = DotProductAttention(
            self.heads, width, self.groups, attention_dropout, qkv_format, attn_mask_type,
            window_size)
        self.proj = Linear(self.heads * width, hidden_size, return_bias=return_bias,
                           init_method=output_layer_init_method or init_method, **kind)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                rotary_pos_emb: Tensor | None = None, attn_mask_type: str | None = None,
                window_size=None, is_first_microbatch: bool | None = None, **options):
        refuse("MultiheadAttention", **{key: value for key, value in options.items()
                                        if value not in (False, True, "no_bias")})
        first = self.layernorm_qkv if hasattr(self, "layernorm_qkv") else self.qkv
        shared = self.heads // self.groups
        mixed = first(hidden_states).unflatten(-1, (self.groups, shared + 2, self.width))
        query, key, value = mixed.split((shared, 1, 1), -2)
        query, key, value = query.flatten(-3, -2), key.squeeze(-2), value.squeeze(-2)
        if rotary_pos_emb is not None:
            query, key = (apply_rotary_pos_emb(one, rotary_pos_emb, self.qkv_format)
                          for one in (query, key))
        out = self.core_attention(query, key, value, attention_mask,
                                  attn_mask_type=attn_mask_type, window_size=window_size)
        return self.proj(out)
