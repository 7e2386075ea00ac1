"""Compute the values of CUDA's fused kernels with kernels that the CPU has."""

from __future__ import annotations

import torch

from virtualgpu.pytorch.package_values import PACKAGE_VALUES

aten = torch.ops.aten


def _attention(query, key, value, bias=None, dropout=0.0, causal=False, scale=None):
    """Return the output and log-sum-exp of fused attention, from the CPU's kernel."""
    if dropout:
        raise NotImplementedError("the backward pass would need the same dropout mask")
    times = query.shape[1] // key.shape[1]
    if times > 1:
        key, value = (one.repeat_interleave(times, 1) for one in (key, value))
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale)


def _attention_backward(grad, query, key, value, bias, dropout, causal, scale):
    out, logsumexp = _attention(query, key, value, bias, dropout, causal, scale)
    heads = key.shape[1]
    times = query.shape[1] // heads
    if times > 1:
        key, value = (one.repeat_interleave(times, 1) for one in (key, value))
    for_query, *others = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, out, logsumexp, 0.0, causal, attn_mask=bias, scale=scale)
    return for_query, *(one.unflatten(1, (heads, times)).sum(2) for one in others)


def _flash(query, key, value, dropout=0.0, causal=False, *_, scale=None):
    return _attention(query, key, value, None, dropout, causal, scale)


def _flash_backward(grad, query, key, value, out, logsumexp, starts, key_starts, longest,
                    longest_key, dropout, causal, *_, scale=None):
    return _attention_backward(grad, query, key, value, None, dropout, causal, scale)


def _efficient(query, key, value, bias, save, dropout=0.0, causal=False, *, scale=None):
    return _attention(query, key, value, bias, dropout, causal, scale)


def _efficient_backward(grad, query, key, value, bias, out, logsumexp, seed, offset, dropout,
                        mask, causal=False, *, scale=None):
    return _attention_backward(grad, query, key, value, bias, dropout, causal, scale)


def _cudnn(query, key, value, bias, save, dropout=0.0, causal=False, debug=False, *, scale=None):
    out, logsumexp = _attention(query, key, value, bias, dropout, causal, scale)
    return out, logsumexp.unsqueeze(-1)


def _cudnn_backward(grad, query, key, value, out, logsumexp, seed, offset, bias, starts,
                    key_starts, longest, longest_key, dropout, causal, *, scale=None):
    return _attention_backward(grad, query, key, value, bias, dropout, causal, scale)


def _rms_norm_backward(grad, x, shape, rstd, weight, mask):
    """Return the gradients of the input and of the weight; the CPU has no kernel for them."""
    grad, normalized = grad.to(rstd.dtype), x.to(rstd.dtype) * rstd
    scaled_grad = grad if weight is None else grad * weight.to(rstd.dtype)
    last = list(range(-len(shape), 0))
    for_x = rstd * (scaled_grad - normalized * (scaled_grad * normalized).mean(last, keepdim=True))
    for_weight = (grad * normalized).reshape(-1, *shape).sum(0)
    return (for_x.to(x.dtype) if mask[0] else None,
            for_weight.to(weight.dtype) if mask[1] else None)


def _layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, mask):
    """Compute in the statistics' dtype, fp32 for 16-bit inputs, which the CPU's kernel refuses."""
    found = aten.native_layer_norm_backward(
        *(one.to(rstd.dtype) for one in (grad, x)), shape, mean, rstd,
        *(None if one is None else one.to(rstd.dtype) for one in (weight, bias)), mask)
    return tuple(None if one is None else one.to(x.dtype if like is None else like.dtype)
                 for one, like in zip(found, (x, weight, bias), strict=True))


# CUDA's kernels and their substitutes. Results that only the backward pass reads are zeros.
STAND_INS = {
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._fused_rms_norm_backward.default: _rms_norm_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    **PACKAGE_VALUES,
}
