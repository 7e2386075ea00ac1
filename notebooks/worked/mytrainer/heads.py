"""Causal self-attention whose heads are partitioned over the ranks."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import ColumnParallelLinear, RowParallelLinear


def rotate(x, base):
    """Rotate the channels of x [s, b, heads, d] by angles that grow with the position (RoPE; Su et al., 2021).

    Channel i < d/2 and channel i + d/2 are a pair, which position p rotates by p * base ** (-2i/d).
    """
    positions = torch.arange(x.shape[0], device=x.device, dtype=torch.float32)
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (positions[:, None] * speeds)[:, None, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(torch.nn.Module):
    """Grouped-query attention (Ainslie et al., 2023) with rotary positions; rank i has heads/t query heads.

    With fewer key and value heads than ranks, neighboring ranks have copies of the same one.

    Attributes:
        query, key, value, out: the linear layers, without biases. A weight whose gradient on a rank is only a term
            has the attribute `is_partial`, which is true.
    """

    def __init__(self, hidden, heads, kv_heads, head_dim, region, base=10000.0, flash=False):
        """Args:
            hidden: h.
            heads: query heads of all ranks together.
            kv_heads: key and value heads of all ranks together.
            head_dim: d, the channels of a head.
            region: the ranks.
            base: the base of rotate.
            flash: whether core calls PyTorch's fused kernel.
        """
        super().__init__()
        self.region, self.head_dim, self.base, self.flash = region, head_dim, base, flash
        parts = min(kv_heads, region.size)
        self.query = ColumnParallelLinear(hidden, heads * head_dim, region)
        self.key = ColumnParallelLinear(hidden, kv_heads * head_dim, region, parts=parts)
        self.value = ColumnParallelLinear(hidden, kv_heads * head_dim, region, parts=parts)
        self.out = RowParallelLinear(heads * head_dim, hidden, region)
        for layer in (self.key, self.value):
            layer.weight.is_partial = layer.weight.copies > 1

    def forward(self, x):
        """Map x [s, b, h] to the same shape."""
        query, key, value = (one.unflatten(-1, (-1, self.head_dim)) for one in self.region.columns(
            x, self.query, self.key, self.value))
        query, key = rotate(query, self.base), rotate(key, self.base)
        return self.out(self.core(query, key, value))

    def core(self, query, key, value):
        """Return softmax(Q K^T / sqrt(d)) V as [s, b, d heads/t].

        Args:
            query: Q, [s, b, heads/t, d].
            key: K, [s, b, this rank's key heads, d].
            value: V, of the same shape as K.
        """
        query, key, value = (one.permute(1, 2, 0, 3) for one in (query, key, value))  # [b, heads, s, d]
        if self.flash:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        else:
            groups, s = key.shape[1], key.shape[2]
            scores = query.unflatten(1, (groups, -1)) @ key[:, :, None].mT / math.sqrt(self.head_dim)
            later = torch.ones(s, s, dtype=torch.bool, device=key.device).triu(1)
            out = (scores.masked_fill(later, -math.inf).softmax(-1) @ value[:, :, None]).flatten(1, 2)
        return out.permute(2, 0, 1, 3).flatten(2)


def finish_gradients(parameters, region):
    """After the last backward pass of a step: complete the gradients of which each copy has only a term.

    Args:
        parameters: an iterator over this rank's parameters, in the same order on all ranks. Those whose `is_partial`
            is true have a `.grad` that is a term; afterward, it is the sum of the terms of all copies of the same
            part.
        region: the ranks.
    """
    partial = [one for one in parameters if getattr(one, "is_partial", False)]
    if not partial:
        return
    buffers = [one.grad.new_zeros(one.full_shape) for one in partial]
    for one, buffer in zip(partial, buffers, strict=True):
        buffer[one.part] = one.grad
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat, group=region.group)
    for one, whole in zip(partial, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        one.grad.copy_(whole.view(one.full_shape)[one.part])
