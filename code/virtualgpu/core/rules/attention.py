"""The rate of fused attention kernels, by kernel, pass, head dimension, and row length.

A kernel processes tiles of the score matrix. Short rows leave too few tiles to hide the latency of
loads. With a causal mask, the tiles on the diagonal are computed in full although half of each is
discarded. So for rows of s tokens, the rate is

    peak x card.efficiency.attention x share / (1 + (startup + diagonal [if causal]) / s).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from virtualgpu.core.card import CUDNN, FLASH, Card
from virtualgpu.core.operand import Operand, moved
from virtualgpu.core.rules.returns import (
    FLOAT,
    LONG,
    Arguments,
    Result,
    like,
    matching,
    returns,
    same_dtype,
)
from virtualgpu.core.rules.work import DTYPES, AttentionKernel, CostRule, KernelWork, read_and_write

EFFICIENT = "efficient"
STACK = "stack"  # the software stack's kernel (Efficiency.fused)


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


# ---- costs


def attention(kernel: str, gemms: int, causal: int) -> CostRule:
    """Cost of fused attention: FLOPs as in FlashAttention-2 (Dao 2023, arXiv:2307.08691, 4.1).

    A forward pass has two matrix multiplications, a backward pass five, because it recomputes the
    scores. A causal mask halves both. The scores never leave the chip.

    Args:
        kernel: name of the kernel (attention.py).
        gemms: matrix multiplications in the kernel: 2 forward, 5 backward.
        causal: position of the argument `is_causal`.
    """
    first = 0 if gemms == 2 else 1  # a backward pass takes the gradient first
    by_value = gemms // 2  # GEMMs as wide as a value head; the others are as wide as a query head

    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        query, key, value = arguments[first:first + 3]
        batch, heads, rows, width = query.shape
        widths = (gemms - by_value) * width + by_value * value.shape[3]
        flops = 2 * batch * heads * rows * key.shape[2] * widths
        half = len(arguments) > causal and arguments[causal] is True
        return read_and_write(arguments, results)._replace(
            flops=flops // 2 if half else flops, dtype=DTYPES.get(query.dtype, "fp32"),
            attention=AttentionKernel(kernel, gemms > 2, width, key.shape[2], half))
    return rule


def attention_work(arguments: Sequence, results: Sequence[Operand], gemms: int
                   ) -> KernelWork:
    """Cost of fused causal attention over [s, heads, d], which computes half of each GEMM.

    Args:
        arguments: operands, of which the first has the queries' shape.
        results: tensors that it returns.
        gemms: number of GEMMs: 2 forward, 5 backward.
    """
    s, heads, width = arguments[0].shape
    plain = read_and_write(arguments, results)
    return plain._replace(flops=gemms * heads * s * s * width,
                          dtype=DTYPES.get(arguments[0].dtype, "fp32"),
                          attention=AttentionKernel(STACK, gemms > 2, width, s, True))


def clamped_sum(first: int, count: int, largest: int) -> int:
    """Return the sum of `first`, `first + 1`, .. (`count` numbers), each clamped to 0..largest."""
    below = min(max(-first, 0), count)
    above = min(max(first + count - 1 - largest, 0), count - below)
    between = count - below - above
    return between * (2 * (first + below) + between - 1) // 2 + above * largest


def visible_pairs(rows: int, columns: int, window: Sequence[int]) -> int:
    """Return the number of pairs of query and key that a mask leaves, as FLOPs are counted: the
    diagonal of a causal mask counts half.

    The last query is aligned with the last key, as in FlashAttention since 2.1.

    Args:
        rows: number of queries.
        columns: number of keys.
        window: how many keys before and after its own position a query sees; -1: all of them.
    """
    left, right = window
    first = columns - rows  # position of the first query
    ends = clamped_sum(first + right + 1, rows, columns) if right >= 0 else rows * columns
    starts = clamped_sum(first - left, rows, columns) if left >= 0 else 0
    return ends - starts - (min(rows, columns) // 2 if right == 0 else 0)


def packed(gemms: int) -> CostRule:
    """Cost of attention over sequences of given lengths (packed_attention in core/kernels.py).

    Args:
        gemms: matrix multiplications in the kernel: 2 forward, 5 backward.
    """
    first = 0 if gemms == 2 else 1

    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        query, key, value = arguments[first:first + 3]
        rows, columns, window, *_, kernel = arguments[3 + 3 * first:]
        heads, width = query.shape[-2:]
        pairs = [visible_pairs(*one, window) for one in zip(rows, columns, strict=True)]
        longest = sum(pair * column for pair, column in zip(pairs, columns, strict=True))
        seen = longest // max(sum(pairs), 1)
        causal, windowed = window[1] == 0, window[0] >= 0
        if windowed:
            seen = min(seen, sum(side for side in window if side > 0) + 1)
        # A key cache may be longer than what is read of it.
        read = sum(columns) * key.shape[-2] * (width + value.shape[-1]) * key.element_size()
        others = [*arguments[:first], query, *arguments[first + 3:first + 3 + 2 * first]]
        size = read * (1 if first == 0 else 2) + sum(map(moved, others)) + (
            sum(map(moved, results)) if first == 0 else moved(results[0]))
        return KernelWork(size, flops=2 * gemms * sum(pairs) * heads * width,
                          dtype=DTYPES.get(query.dtype, "fp32"),
                          attention=AttentionKernel(kernel, gemms > 2, width, seen, causal))
    return rule


def blocks(gemms: int) -> CostRule:
    """Cost of attention that computes blocks of the scores (block_attention in core/kernels.py).

    Assumed: the rate of FlashAttention-2 without a mask.

    Args:
        gemms: matrix multiplications in the kernel: 2 forward, 5 backward.
    """
    first = 0 if gemms == 2 else 1

    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        query, key = arguments[first:first + 2]
        batch, heads, _, width = query.shape
        return read_and_write(arguments, results)._replace(
            flops=2 * gemms * batch * heads * arguments[-1] * width,
            dtype=DTYPES.get(query.dtype, "fp32"),
            attention=AttentionKernel(FLASH, gemms > 2, width, key.shape[2], False))
    return rule


SDPA = "_scaled_dot_product_"
COSTS: dict[str, CostRule] = {
    f"aten.{SDPA}flash_attention": attention(FLASH, 2, 4),
    f"aten.{SDPA}flash_attention_backward": attention(FLASH, 5, 11),
    f"aten.{SDPA}efficient_attention": attention(EFFICIENT, 2, 6),
    f"aten.{SDPA}efficient_attention_backward": attention(EFFICIENT, 5, 11),
    f"aten.{SDPA}cudnn_attention": attention(CUDNN, 2, 6),
    f"aten.{SDPA}cudnn_attention_backward": attention(CUDNN, 5, 14),
    "virtualgpu.flash_attention": lambda a, r: attention_work(a, r, 2),
    "virtualgpu.flash_attention_backward": lambda a, r: attention_work(a, r, 5),
    "virtualgpu.block_attention": blocks(2),
    "virtualgpu.block_attention_backward": blocks(5),
    "virtualgpu.packed_attention": packed(2),
    "virtualgpu.packed_attention_backward": packed(5),
}


# ---- results


def _heads_match(query: Operand, key: Operand, value: Operand) -> None:
    """Check queries, keys, and values of shape [batch, heads, sequence, width]."""
    matching(query.dim() == key.dim() == value.dim() == 4
             and key.shape[:3] == value.shape[:3] and key.shape[0] == query.shape[0]
             and key.shape[3] == query.shape[3] and key.shape[1] > 0
             and query.shape[1] % key.shape[1] == 0, query=query, key=key, value=value)
    same_dtype(query, key, value)


@returns(f"{SDPA}flash_attention", f"{SDPA}efficient_attention", f"{SDPA}cudnn_attention")
def _attention(a: Arguments) -> list[Result]:
    _heads_match(a.query, a.key, a.value)
    batch, heads, rows, width = a.query.shape
    out = (batch, heads, rows, a.value.shape[3])
    number = ((), LONG)
    if "flash" in a.name:
        mask: tuple[int, ...] = (0,)
        if a.return_debug_mask:
            block = 128 if width > 64 else 256
            columns = -(-rows // block)
            columns = 128 if a.key.shape[2] <= 128 else 256 if a.key.shape[2] <= 256 else columns
            mask = (batch, heads, rows, columns)
        return [(a.query.shape, a.query.dtype), ((batch, heads, rows), FLOAT),
                ((2,), torch.uint64), ((), torch.uint64), (mask, a.query.dtype)]
    if "cudnn" in a.name:
        return [(out, a.query.dtype), ((batch, heads, rows, 1), FLOAT), number, number]
    padded = -(-rows // 32) * 32 if a.compute_log_sumexp else 0
    return [(out, a.query.dtype), ((batch, heads, padded), FLOAT), number, number]


@returns(f"{SDPA}flash_attention_backward", f"{SDPA}efficient_attention_backward",
         f"{SDPA}cudnn_attention_backward")
def _attention_backward(a: Arguments) -> list[Result]:
    grad = a.grad_out_ if hasattr(a, "grad_out_") else a.grad_out
    _heads_match(a.query, a.key, a.value)
    matching(grad.shape == (*a.query.shape[:3], a.value.shape[3]), grad=grad, query=a.query,
             value=a.value)
    found = [like(a.query), like(a.key), like(a.value)]
    bias = getattr(a, "attn_bias", None)
    if "efficient" in a.name and bias is not None and a.grad_input_mask[3]:
        found.append(like(bias))
    return found


def _fused_heads_match(query: Operand, key: Operand, value: Operand) -> None:
    """Check queries, keys, and values of shape [sequence, heads, width]; keys may have fewer heads.
    """
    matching(query.dim() == key.dim() == 3 and key.shape == value.shape
             and query.shape[::2] == key.shape[::2] and key.shape[1] > 0
             and query.shape[1] % key.shape[1] == 0, query=query, key=key, value=value)
    same_dtype(query, key, value)


@returns("virtualgpu.flash_attention")
def _fused_attention(a: Arguments) -> list[Result]:
    _fused_heads_match(a.query, a.key, a.value)
    return [like(a.query), ((a.query.shape[1], a.query.shape[0]), FLOAT)]


@returns("virtualgpu.flash_attention_backward")
def _fused_attention_backward(a: Arguments) -> list[Result]:
    _fused_heads_match(a.query, a.key, a.value)
    matching(a.grad.numel() == a.query.numel(), grad=a.grad, query=a.query)
    return [like(a.query), like(a.key), like(a.value)]


def _packed_fits(a: Arguments) -> None:
    """Check [tokens, heads, width] or [batch, tokens, heads, width], and the sequences' lengths."""
    query, key, value = a.query, a.key, a.value
    matching(query.dim() in (3, 4) and key.dim() == value.dim() == query.dim()
             and key.shape[:-1] == value.shape[:-1] and query.shape[-1] == key.shape[-1]
             and key.shape[-2] > 0 and query.shape[-2] % key.shape[-2] == 0,
             query=query, key=key, value=value)
    same_dtype(query, key, value)
    if a.kernel not in (FLASH, CUDNN, EFFICIENT):
        raise ValueError(f"kernel {a.kernel!r}: no such kernel")
    if len(a.rows) != len(a.columns) or min([0, *a.rows, *a.columns]) < 0:
        raise ValueError(f"packed attention: query lengths {a.rows} and key lengths {a.columns} "
                         "must be two lists of the same size, with no negative length")
    if len(a.window) != 2 or min(a.window) < -1:
        raise ValueError(f"packed attention: the window {a.window} must be two numbers, -1 or more")
    for name, sizes, tensor in (("rows", a.rows, query), ("columns", a.columns, key)):
        if (sum(sizes) > tensor.shape[0] if tensor.dim() == 3 else
                len(sizes) != query.shape[0] or max([0, *sizes]) > tensor.shape[1]):
            raise ValueError(f"packed attention: {name} do not fit {list(tensor.shape)}")


@returns("virtualgpu.packed_attention")
def _packed_attention(a: Arguments) -> list[Result]:
    _packed_fits(a)
    *batch, tokens, heads, _ = a.query.shape
    return [((*a.query.shape[:-1], a.value.shape[-1]), a.query.dtype),
            ((*batch, heads, tokens), FLOAT)]


@returns("virtualgpu.packed_attention_backward")
def _packed_attention_backward(a: Arguments) -> list[Result]:
    _packed_fits(a)
    matching(a.grad.shape == (*a.query.shape[:-1], a.value.shape[-1]), grad=a.grad, query=a.query)
    return [like(a.query), like(a.key), like(a.value)]


def _blocks_fit(a: Arguments) -> None:
    _heads_match(a.query, a.key, a.value)
    if not 0 <= a.pairs <= a.query.shape[2] * a.key.shape[2]:
        raise ValueError(f"block attention of {a.pairs} pairs: expected at most "
                         f"{a.query.shape[2]} x {a.key.shape[2]}")


@returns("virtualgpu.block_attention")
def _block_attention(a: Arguments) -> list[Result]:
    _blocks_fit(a)
    return [((*a.query.shape[:3], a.value.shape[3]), a.query.dtype), (a.query.shape[:3], FLOAT)]


@returns("virtualgpu.block_attention_backward")
def _block_attention_backward(a: Arguments) -> list[Result]:
    _blocks_fit(a)
    matching(a.grad.shape == (*a.query.shape[:3], a.value.shape[3]), grad=a.grad, query=a.query)
    return [like(a.query), like(a.key), like(a.value)]
