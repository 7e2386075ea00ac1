"""Causal attention with an online softmax, which never materializes all scores (Dao et al. 2022)."""

import torch


def attention(query, key, value, block=128):
    """Return softmax(Q K^T / sqrt(d)) V with a causal mask.

    Args:
        query, key, value: [n, s, d], in 16 bits or in fp32.
        block: keys that are processed at a time.
    """
    return TiledAttention.apply(query, key, value, block)


class TiledAttention(torch.autograd.Function):
    """The autograd function behind `attention`."""

    @staticmethod
    def scores(query, key, first, block):
        """Return the scaled scores of a block of keys, and of the queries from `first` on that may see them."""
        scores = (query[:, first:] @ key[:, first:first + block].mT).float() / query.shape[-1]**0.5
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(mask, float("-inf"))

    @staticmethod
    def forward(ctx, query, key, value, block):
        out = torch.zeros_like(query, dtype=torch.float32)
        total = torch.full(query.shape[:2], float("-inf"), device=query.device)
        for first in range(0, query.shape[1], block):
            scores = TiledAttention.scores(query, key, first, block)
            old, own = total[:, first:], scores.logsumexp(-1)
            new = torch.logaddexp(old, own)
            out[:, first:] = ((old - new).exp()[..., None] * out[:, first:]
                              + (scores - new[..., None]).exp().to(value.dtype) @ value[:, first:first + block])
            total[:, first:] = new
        ctx.block, out = block, out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        return out

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, out, total = ctx.saved_tensors
        of_query = torch.zeros_like(query, dtype=torch.float32)
        of_key, of_value = torch.empty_like(key), torch.empty_like(value)
        mean = (gradient.float() * out.float()).sum(-1, keepdim=True)
        for first in range(0, query.shape[1], ctx.block):
            keys = slice(first, first + ctx.block)
            weights = (TiledAttention.scores(query, key, first, ctx.block) - total[:, first:, None]).exp()
            of_value[:, keys] = weights.to(gradient.dtype).mT @ gradient[:, first:]
            of_scores = weights * (gradient[:, first:] @ value[:, keys].mT - mean[:, first:]) / query.shape[-1]**0.5
            of_scores = of_scores.to(key.dtype)
            of_query[:, first:] += of_scores @ key[:, keys]
            of_key[:, keys] = of_scores.mT @ query[:, first:]
        return of_query.to(query.dtype), of_key, of_value, None
