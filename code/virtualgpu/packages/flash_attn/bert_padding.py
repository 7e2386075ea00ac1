"""Remove padding from batches, and put it back, as flash_attn.bert_padding does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of values [rows, ..] at these indices."""
    return values[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return zeros [first_axis_dim, ..] with these rows at the indices."""
    out = values.new_zeros(first_axis_dim, *values.shape[1:])
    return out.index_put((indices,), values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None):
    """Return the tokens that are not padding.

    Args:
        hidden_states: [batch, tokens, ..].
        attention_mask: [batch, tokens], 1 for a token and 0 for padding.
        unused_mask: as attention_mask, 1 for allocated tokens that are not used.

    Returns:
        The tokens [total, ..], their indices in the flattened batch, the cumulative lengths, the
        longest length, and the number of used tokens of each sequence.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    seqlens = kept.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    starts = F.pad(seqlens.cumsum(0, dtype=torch.int32), (1, 0))
    return (index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts,
            seqlens.max().item(), used)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return the tokens [total, ..] as [batch, seqlen, ..], with zeros as padding."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(
        0, (batch, seqlen))
