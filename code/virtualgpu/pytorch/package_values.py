"""Compute the values of kernels of packages that need CUDA (core/kernels.py), on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

run = torch.ops.virtualgpu


def sequences(query: Tensor, rows: Sequence[int], columns: Sequence[int]
              ) -> Iterator[tuple[tuple, tuple]]:
    """Yield where each sequence's queries and keys are, as indices of the tensors.

    Args:
        query: [tokens, heads, width], or [batch, tokens, heads, width].
        rows: queries of each sequence.
        columns: keys of each sequence.
    """
    row = column = 0
    for index, (height, length) in enumerate(zip(rows, columns, strict=True)):
        if query.dim() == 4:
            yield (index, slice(height)), (index, slice(length))
        else:
            yield (slice(row, row + height),), (slice(column, column + length),)
            row, column = row + height, column + length


def visible(rows: int, columns: int, window: Sequence[int]) -> Tensor:
    """Return which keys each query sees, bool [rows, columns]; the last ones are aligned."""
    left, right = window
    ahead = torch.arange(columns) - (torch.arange(rows)[:, None] + columns - rows)
    seen = torch.ones(rows, columns, dtype=torch.bool)
    if right >= 0:
        seen &= ahead <= right
    if left >= 0:
        seen &= ahead >= -left
    return seen


def attend(query: Tensor, key: Tensor, value: Tensor, window: Sequence[int], scale: float,
           softcap: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return one sequence's scores before the mask, their weights, and their log-sum-exp.

    Args:
        query: [heads, rows, width].
        key: [heads, columns, width].
        value: [heads, columns, width].
        window: as in core.rules.attention.visible_pairs.
        scale: of the scores.
        softcap: bound of the scores, by tanh; 0: none.
    """
    scores = query @ key.mT * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    masked = scores.masked_fill(~visible(*scores.shape[1:], window), float("-inf"))
    logsumexp = masked.logsumexp(-1)
    return scores, (masked - logsumexp[..., None]).exp().nan_to_num(0.0), logsumexp


def by_head(heads: int, *given: Tensor) -> list[Tensor]:
    """Return [tokens, heads of the keys, width] as fp32 [heads, tokens, width]."""
    return [one.float().transpose(0, 1).repeat_interleave(heads // one.shape[1], 0)
            for one in given]


def packed_attention(query, key, value, rows, columns, window, scale, softcap, dropout, kernel):
    """Return the results of virtualgpu.packed_attention."""
    if dropout:
        raise NotImplementedError("the backward pass would need the same dropout mask")
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    logsumexp = query.new_zeros(*query.shape[:-3], *query.shape[-2:-4:-1], dtype=torch.float32)
    for at, keys in sequences(query, rows, columns):
        given = by_head(query.shape[-2], query[at], key[keys], value[keys])
        _, weights, sums = attend(*given, window, scale, softcap)
        out[at] = (weights @ given[2]).transpose(0, 1).to(out.dtype)
        logsumexp[(*at[:-1], slice(None), at[-1])] = sums
    return out, logsumexp


def packed_attention_backward(grad, query, key, value, out, logsumexp, rows, columns, window, scale,
                              softcap, dropout, kernel):
    """Return the results of virtualgpu.packed_attention_backward."""
    if dropout:
        raise NotImplementedError("the backward pass would need the same dropout mask")
    results = [torch.zeros_like(one) for one in (query, key, value)]
    heads = query.shape[-2]
    for at, keys in sequences(query, rows, columns):
        given = by_head(heads, query[at], key[keys], value[keys])
        above, result = by_head(heads, grad[at], out[at])
        scores, weights, _ = attend(*given, window, scale, softcap)
        slope = weights * (above @ given[2].mT - (above * result).sum(-1, keepdim=True)) * scale
        if softcap:
            slope = slope * (1 - (scores / softcap) ** 2)
        found = slope @ given[1], slope.mT @ given[0], weights.mT @ above
        for target, place, one in zip(results, (at, keys, keys), found, strict=True):
            shared = one.unflatten(0, (target.shape[-2], -1)).sum(1)
            target[place] = shared.transpose(0, 1).to(target.dtype)
    return tuple(results)


def rotate_pairs(x, cos, sin, interleaved, inverse):
    """Return x with its first elements rotated, as virtualgpu.rotate_pairs."""
    return rotate_pairs_(x.clone(), cos, sin, interleaved, inverse)


def rotate_pairs_(x, cos, sin, interleaved, inverse):
    """Rotate pairs of x [.., s, n, d] in place by the angles of each position [s, width/2]."""
    width = 2 * cos.shape[-1]
    cos, sin = (one.unsqueeze(-2).float() for one in (cos, -sin if inverse else sin))
    if interleaved:
        first, second = x[..., 0:width:2], x[..., 1:width:2]
    else:
        first, second = x[..., :width // 2], x[..., width // 2:width]
    a, b = (one.to(torch.float32, copy=True) for one in (first, second))
    first.copy_(a * cos - b * sin)
    second.copy_(a * sin + b * cos)
    return x


def cast_transpose(x, scale, amax, dtype):
    """Return x times its scale in FP8 and the transpose of that, and raise amax to x's."""
    amax.copy_(torch.maximum(amax, x.abs().amax().to(amax.dtype)))
    most = torch.finfo(dtype).max
    rounded = (x.float() * scale).clamp(-most, most).to(dtype)
    return rounded, rounded.t().contiguous()


def swiglu(x):
    """Return SiLU(gate) * up of x [.., 2f]."""
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate.float()).mul(up).to(x.dtype)


def swiglu_backward(grad, x):
    """Return the gradient of x."""
    gate, up, grad = (one.float() for one in (*x.chunk(2, -1), grad))
    share = torch.sigmoid(gate)
    for_gate = grad * up * share * (1 + gate * (1 - share))
    return torch.cat((for_gate, grad * gate * share), -1).to(x.dtype)


def add_product(total, a, b):
    """Add a [m, k] @ b [k, n] to a buffer in place."""
    return total.add_(a.float() @ b.float())


def masked_softmax(scores):
    """Return the softmax of each row of scores [.., s, s] up to its diagonal."""
    hidden = ~visible(*scores.shape[-2:], (-1, 0))
    return scores.float().masked_fill(hidden, float("-inf")).softmax(-1).to(scores.dtype)


def masked_softmax_backward(grad, out):
    """Replace the gradient of a softmax's result by that of its scores."""
    weighted = grad.float() * out
    return grad.copy_(weighted - out * weighted.sum(-1, keepdim=True))


PACKAGE_VALUES = {
    run.packed_attention.default: packed_attention,
    run.packed_attention_backward.default: packed_attention_backward,
    run.rotate_pairs.default: rotate_pairs, run.rotate_pairs_.default: rotate_pairs_,
    run.cast_transpose.default: cast_transpose,
    run.swiglu.default: swiglu, run.swiglu_backward.default: swiglu_backward,
    run.add_product.default: add_product, run.masked_softmax.default: masked_softmax,
    run.masked_softmax_backward.default: masked_softmax_backward,
}
