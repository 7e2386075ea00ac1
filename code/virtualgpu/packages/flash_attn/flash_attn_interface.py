"""The attention functions of flash_attn 2, with the package's argument names."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.packages.refusals import refuse, used
from virtualgpu.pytorch.packed import UNLIMITED, active_gpu, attend, lengths, values_of

from .layers.rotary import apply_rotary_emb


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p=0.0, softmax_scale=None,
                    causal=False, window_size=UNLIMITED, softcap=0.0, alibi_slopes=None,
                    deterministic=False, return_attn_probs=False):
    """Compute attention of q, k, and v, all [batch, tokens, heads, width]."""
    refuse("flash_attn_func", alibi_slopes=alibi_slopes)
    rows, columns = ([one.shape[1]] * len(one) for one in (q, k))
    return _attend(q, k, v, rows, columns, dropout_p, softmax_scale, causal, window_size, softcap,
                   return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, *args, **kwargs):
    """Compute attention of qkv, [batch, tokens, 3, heads, width]."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args, **kwargs):
    """Compute attention of q, [batch, tokens, heads, width], and kv, which has a 2 before heads."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q, cu_seqlens_k,
                           max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                           causal=False, window_size=UNLIMITED, softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Compute attention of sequences that are stored one after the other, [tokens, heads, width].
    """
    refuse("flash_attn_varlen_func", alibi_slopes=alibi_slopes, block_table=block_table)
    gpu = active_gpu()
    rows = lengths(gpu, cu_seqlens_q, len(q))
    columns = rows if cu_seqlens_k is cu_seqlens_q else lengths(gpu, cu_seqlens_k, len(k))
    return _attend(q, k, v, rows, columns, dropout_p, softmax_scale, causal, window_size, softcap,
                   return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens, max_seqlen, *args, **kwargs):
    """Compute attention of sequences in qkv, [tokens, 3, heads, width]."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *args, **kwargs):
    """Compute attention of sequences in q, [tokens, heads, width], and kv, with a 2 before heads.
    """
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **kwargs)


def _attend(q, k, v, rows, columns, dropout, scale, causal, window, softcap, with_logsumexp):
    used("flash_attn")
    window = (window[0], 0 if causal else window[1])
    out, logsumexp = attend(q, k, v, rows, columns, window, scale=scale, softcap=softcap,
                            dropout=dropout)
    if not with_logsumexp:
        return out
    if dropout:
        refuse("return_attn_probs", dropout_p=dropout)
    return out, logsumexp, None


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None,
                            block_table=None, softmax_scale=None, causal=False,
                            window_size=UNLIMITED, softcap=0.0, rotary_interleaved=True,
                            alibi_slopes=None, num_splits=0, return_softmax_lse=False):
    """Write k and v [batch, new, heads, width] into the caches [batch, tokens, heads, width] behind
    cache_seqlens, and compute attention of q with all of them."""
    refuse("flash_attn_with_kvcache", cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
           block_table=block_table, alibi_slopes=alibi_slopes)
    used("flash_attn")
    before = _cached(cache_seqlens, k_cache)
    if k is not None:
        if rotary_cos is not None:
            q, k = (_rotated(one, rotary_cos, rotary_sin, before, rotary_interleaved)
                    for one in (q, k))
        for cache, new in ((k_cache, k), (v_cache, v)):
            for index, start in enumerate(before):
                cache[index, start:start + new.shape[1]] = new[index]
    columns = [start + (0 if k is None else k.shape[1]) for start in before]
    window = (window_size[0], 0 if causal else window_size[1])
    out, logsumexp = attend(q, k_cache, v_cache, [q.shape[1]] * len(q), columns, window,
                            scale=softmax_scale, softcap=softcap)
    return (out, logsumexp) if return_softmax_lse else out


def _cached(seqlens: Tensor | int | None, cache: Tensor) -> list[int]:
    """Return the number of tokens in the cache of each sequence."""
    if seqlens is None:
        return [cache.shape[1]] * len(cache)
    if isinstance(seqlens, int):
        return [seqlens] * len(cache)
    gpu = active_gpu()
    known = values_of(gpu, seqlens)
    if known is None:
        gpu.assumptions.note_here("the key-value cache is full")
        return [cache.shape[1]] * len(cache)
    return known.tolist()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, before: list[int], interleaved: bool) -> Tensor:
    return torch.cat([
        apply_rotary_emb(x[index:index + 1], cos, sin, interleaved, seqlen_offsets=start)
        for index, start in enumerate(before)])
