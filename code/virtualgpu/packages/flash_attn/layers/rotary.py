"""Rotary embeddings of flash_attn, one Triton kernel forward and one backward."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.packages.refusals import refuse

run = torch.ops.virtualgpu


class _ApplyRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, interleaved, inplace):
        ctx.save_for_backward(cos, sin)
        ctx.options = interleaved, inplace
        if inplace:
            ctx.mark_dirty(x)
            return run.rotate_pairs_(x, cos, sin, interleaved, False)
        return run.rotate_pairs(x, cos, sin, interleaved, False)

    @staticmethod
    def backward(ctx, grad):
        interleaved, inplace = ctx.options
        rotate = run.rotate_pairs_ if inplace else run.rotate_pairs
        return rotate(grad, *ctx.saved_tensors, interleaved, True), None, None, None, None


class _RotateFirst(torch.autograd.Function):
    """Rotate the first `parts` of qkv [batch, tokens, 3, heads, width] in place, in one kernel."""

    @staticmethod
    def forward(ctx, qkv, cos, sin, interleaved, parts):
        ctx.save_for_backward(cos, sin)
        ctx.options = interleaved, parts
        ctx.mark_dirty(qkv)
        run.rotate_pairs_(qkv[:, :, :parts].flatten(2, 3), cos, sin, interleaved, False)
        return qkv

    @staticmethod
    def backward(ctx, grad):
        interleaved, parts = ctx.options
        grad = grad.contiguous()
        run.rotate_pairs_(grad[:, :, :parts].flatten(2, 3), *ctx.saved_tensors, interleaved, True)
        return grad, None, None, None, None


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, interleaved=False, inplace=False,
                     seqlen_offsets=0, cu_seqlens=None, max_seqlen=None) -> Tensor:
    """Rotate x [batch, tokens, heads, width] by the tables cos and sin [positions, width/2].

    Args:
        x: queries or keys.
        cos: cosines of the angles.
        sin: sines of the angles.
        interleaved: whether neighbors form a pair, not the two halves.
        inplace: whether x is overwritten.
        seqlen_offsets: position of the first token.
        cu_seqlens: not modeled.
        max_seqlen: not modeled.
    """
    refuse("apply_rotary_emb", cu_seqlens=cu_seqlens)
    if not isinstance(seqlen_offsets, int):
        refuse("apply_rotary_emb", seqlen_offsets=seqlen_offsets)
    last = seqlen_offsets + x.shape[1]
    return _ApplyRotary.apply(x, cos[seqlen_offsets:last], sin[seqlen_offsets:last], interleaved,
                              inplace)


apply_rotary_emb_func = apply_rotary_emb


class RotaryEmbedding(torch.nn.Module):
    """Rotary embeddings with tables that grow with the sequence."""

    def __init__(self, dim: int, base=10000.0, interleaved=False, scale_base=None,
                 pos_idx_in_fp32=True, device=None, **options) -> None:
        super().__init__()
        refuse("RotaryEmbedding", scale_base=scale_base, **options)
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        powers = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / self.base ** powers, persistent=False)
        self._cos_cached = self._sin_cached = None

    def _update_cos_sin_cache(self, seqlen: int, device=None, dtype=None) -> None:
        cached = self._cos_cached
        if cached is None or len(cached) < seqlen or cached.device != device or (
                cached.dtype != dtype):
            positions = torch.arange(seqlen, device=device, dtype=torch.float32)
            angles = torch.outer(positions, self.inv_freq.to(device))
            self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, qkv: Tensor, kv: Tensor | None = None, seqlen_offset=0, cu_seqlens=None,
                max_seqlen=None):
        """Rotate queries and keys of qkv [batch, tokens, 3, heads, width] in place; with kv, qkv
        has the queries only, [batch, tokens, heads, width]."""
        length = seqlen_offset + qkv.shape[1]
        self._update_cos_sin_cache(max(length, max_seqlen or 0), qkv.device, qkv.dtype)

        def rotate(x: Tensor) -> Tensor:
            return apply_rotary_emb(x, self._cos_cached, self._sin_cached, self.interleaved, True,
                                    seqlen_offset, cu_seqlens)
        tables = (self._cos_cached[seqlen_offset:length], self._sin_cached[seqlen_offset:length])
        refuse("RotaryEmbedding", cu_seqlens=cu_seqlens)
        if kv is None:
            return _RotateFirst.apply(qkv, *tables, self.interleaved, 2)
        rotated = _ApplyRotary.apply(qkv, *tables, self.interleaved, True)
        return rotated, _RotateFirst.apply(kv, *tables, self.interleaved, 1)
