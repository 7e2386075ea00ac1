"""Apex's softmax with any mask in one kernel: only its limits, which Megatron-LM asks for."""

from __future__ import annotations

from virtualgpu.packages.refusals import missing

THREADS, WARP = 128, 32  # per block


def get_batch_per_block(query_length: int, key_length: int, batches: int, heads: int) -> int:
    """Return how many rows one block of the kernel computes."""
    width = 1 << max(key_length - 1, 0).bit_length()
    return THREADS // min(width, WARP) * (2 if width <= THREADS else 1)


__getattr__ = missing("scaled_masked_softmax_cuda")
