"""Masks of xformers: which keys each query sees."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from virtualgpu.packages.refusals import missing, refuse

__getattr__ = missing("xformers.ops.fmha.attn_bias")


class AttentionBias:
    """No mask: every query sees all keys of its batch element."""

    window: tuple[int, int] = (-1, -1)  # keys before and after a query's own position; -1: all

    def sequences(self, query: Tensor, key: Tensor
                  ) -> tuple[list[int], list[int], tuple[int, int]]:
        """Return the queries and keys of each sequence, and the window."""
        return [query.shape[1]] * len(query), [key.shape[1]] * len(key), self.window


class LowerTriangularMask(AttentionBias):
    """A causal mask. The first query is aligned with the first key."""

    window = (-1, 0)

    def sequences(self, query: Tensor, key: Tensor
                  ) -> tuple[list[int], list[int], tuple[int, int]]:
        if query.shape[1] != key.shape[1]:
            refuse("LowerTriangularMask", query=query.shape, key=key.shape)
        return super().sequences(query, key)


class LowerTriangularFromBottomRightMask(AttentionBias):
    """A causal mask. The last query is aligned with the last key."""

    window = (-1, 0)


class LocalAttentionFromBottomRightMask(AttentionBias):
    """A sliding window."""

    def __init__(self, window_left: int, window_right: int) -> None:
        self.window = (window_left, window_right)


class BlockDiagonalMask(AttentionBias):
    """Sequences one after the other in a batch of one; a query sees its own sequence."""

    def __init__(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        self.rows, self.columns = list(rows), list(columns)

    @classmethod
    def from_seqlens(cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None,
                     *, device: object = None) -> BlockDiagonalMask:
        """Return the mask for sequences of these lengths."""
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.rows, self.columns)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(self.rows, self.columns)

    def make_local_attention(self, window_size: int) -> BlockDiagonalMask:
        mask = BlockDiagonalCausalFromBottomRightMask(self.rows, self.columns)
        mask.window = (window_size - 1, 0)
        return mask

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Return the sequences of a tensor [1, tokens, ..]."""
        return list(tensor.split(self.rows, 1))

    def sequences(self, query: Tensor, key: Tensor
                  ) -> tuple[list[int], list[int], tuple[int, int]]:
        if sum(self.rows) != query.shape[1] or sum(self.columns) != key.shape[1]:
            raise ValueError(f"{type(self).__name__}: sequences of {sum(self.rows)} queries and "
                             f"{sum(self.columns)} keys, but the tensors have {query.shape[1]} "
                             f"and {key.shape[1]}")
        return self.rows, self.columns, self.window


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """As BlockDiagonalMask, and causal."""

    window = (-1, 0)

    def sequences(self, query: Tensor, key: Tensor
                  ) -> tuple[list[int], list[int], tuple[int, int]]:
        if self.rows != self.columns:
            refuse("BlockDiagonalCausalMask", kv_seqlen=self.columns)
        return super().sequences(query, key)


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """As BlockDiagonalMask, and causal, with the last query aligned with the last key."""

    window = (-1, 0)
