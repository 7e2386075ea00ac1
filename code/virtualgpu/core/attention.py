"""The rate of fused attention kernels, by kernel, pass, head dimension, and row length.

A kernel processes tiles of the score matrix. Short rows leave too few tiles to hide the latency of
loads. With a causal mask, the tiles on the diagonal are computed in full although half of each is
discarded. So for rows of s tokens, the rate is

    peak x card.efficiency.attention x share / (1 + (startup + diagonal [if causal]) / s).
"""

from __future__ import annotations

from typing import NamedTuple

from virtualgpu.core.card import Card

FLASH, CUDNN, EFFICIENT = "flash", "cudnn", "efficient"
STACK = "stack"  # the software stack's kernel (Efficiency.fused)


class AttentionKernel(NamedTuple):
    """A fused attention kernel.

    Attributes:
        kernel: FLASH, CUDNN, EFFICIENT, or STACK.
        backward: whether it computes the gradients.
        width: head dimension of the queries.
        rows: tokens that a query can attend to.
        causal: whether half of them are masked.
    """

    kernel: str
    backward: bool
    width: int
    rows: int
    causal: bool


class AttentionRates(NamedTuple):
    """Rate of a kernel, relative to FlashAttention-2's forward pass over long unmasked rows with a
    head dimension of 128.

    Attributes:
        narrow: rate for head dimensions up to 64.
        wide: rate for larger head dimensions.
        startup: tokens lost per row, see the formula above.
        diagonal: tokens lost per causal row, see the formula above.
    """

    narrow: float
    wide: float
    startup: float
    diagonal: float


# Fitted to one H100 with torch 2.11 and CUDA 13: 20 shapes per kernel and pass, from 1,024 to
# 16,384 tokens (benchmarks/results/gpu_h100.md). The mean error of these rates is 1 to 3% per row.
# Key: (kernel, backward).
HOPPER = {
    (FLASH, False): AttentionRates(0.90, 1.0, 22, 382),
    (FLASH, True): AttentionRates(0.85, 0.93, 239, 413),
    (CUDNN, False): AttentionRates(1.43, 1.89, 65, 395),
    (CUDNN, True): AttentionRates(1.39, 1.70, 377, 691),
    (EFFICIENT, False): AttentionRates(0.39, 0.50, 21, 198),
    (EFFICIENT, True): AttentionRates(0.31, 0.39, 1, 278),
}

# fp32, which runs on no Tensor Core: 29 to 33 of 67 TFLOP/s for causal rows of 1,024 to 4,096
# tokens on the same H100, whatever the shape. Assumed for all GPUs.
FP32 = 0.46


def attention_rate(card: Card, dtype: str, attention: AttentionKernel) -> float:
    """Return the FLOP/s of a fused attention kernel.

    Assumed: before Hopper, all kernels are as fast as FlashAttention-2; on Blackwell, they reach
    the same share of the peak as on Hopper.

    Args:
        card: the GPU model.
        dtype: dtype of the operands, as in Card.tflops.
        attention: the kernel.
    """
    if dtype == "fp32":
        return card.tflops[dtype] * 1e12 * FP32
    kernel = card.efficiency.fused if attention.kernel == STACK else attention.kernel
    if card.architecture not in ("hopper", "blackwell"):
        kernel = FLASH
    rates = HOPPER[kernel, attention.backward]
    relative = rates.narrow if attention.width <= 64 else rates.wide
    lost = rates.startup + rates.diagonal * attention.causal
    return (card.tflops[dtype] * 1e12 * card.efficiency.attention * relative
            / (1 + lost / max(attention.rows, 1)))
