"""Memory-efficient attention: FlashAttention's kernel for 16 bits, CUTLASS's for fp32."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.core.card import FLASH
from virtualgpu.core.rules.attention import EFFICIENT
from virtualgpu.packages.refusals import missing, refuse, used
from virtualgpu.pytorch.attention import FLASH_MIN_MAJOR, HALF
from virtualgpu.pytorch.packed import attend

from . import attn_bias
from .attn_bias import AttentionBias, LowerTriangularMask

__all__ = ["AttentionBias", "LowerTriangularMask", "attn_bias", "memory_efficient_attention",
           "memory_efficient_attention_forward"]
__getattr__ = missing("xformers.ops.fmha")


def memory_efficient_attention(query: Tensor, key: Tensor, value: Tensor,
                               attn_bias: AttentionBias | None = None, p: float = 0.0,
                               scale: float | None = None, *, op: object = None,
                               output_dtype=None) -> Tensor:
    """Compute attention of query, key, and value [batch, tokens, heads, width].

    Args:
        query: or [batch, tokens, groups, heads, width], for keys that heads of a group share.
        key: see query.
        value: see query.
        attn_bias: None, or a mask of xformers.ops.fmha.attn_bias; a tensor is not modeled.
        p: probability of dropout.
        scale: of the scores; None: 1 / sqrt(width).
        op: the kernel; the one that the dtype and the GPU model suggest is modeled.
        output_dtype: not modeled.
    """
    refuse("memory_efficient_attention", output_dtype=output_dtype)
    if isinstance(attn_bias, Tensor) or not isinstance(attn_bias, AttentionBias | None):
        refuse("memory_efficient_attention", attn_bias=type(attn_bias).__name__)
    used("xformers")
    shape = query.shape
    if query.dim() == 5:  # expanded keys have one head per group
        query = query.flatten(2, 3)
        key, value = (one[:, :, :, 0] for one in (key, value))
    rows, columns, window = (attn_bias or AttentionBias()).sequences(query, key)
    major = torch.cuda.get_device_capability()[0]
    kernel = FLASH if query.dtype in HALF and major >= FLASH_MIN_MAJOR else EFFICIENT
    packed = len(rows) != len(query)
    if packed:  # sequences are one after the other in a batch of one
        query, key, value = (one[0] for one in (query, key, value))
    out, _ = attend(query, key, value, rows, columns, window, scale=scale, dropout=p,
                    kernel=kernel)
    return (out[None] if packed else out).view(shape)


memory_efficient_attention_forward = memory_efficient_attention
