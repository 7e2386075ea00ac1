"""The time of a GEMM: tiles, waves, and the data sheet's peak.

The result of a GEMM [m, k] x [k, n] is partitioned into tiles; a multiprocessor computes one at a
time, and all of them finish a wave of tiles together. A last wave that is not full, tiles that
extend past the edge, and a short k waste part of the peak. The fastest of a few tile shapes is
chosen, as in cuBLAS. (NVIDIA's "Matrix Multiplication Background" guide explains the scheme.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from virtualgpu.core.card import Card

# Rows and columns of a tile. Small tiles fetch more bytes per FLOP: the rate is proportional to
# area^QUALITY. QUALITY and RAMP are fitted to half of vTrain's measured iterations on the A100
# (benchmarks/virtual_calibration.py).
TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
         (32, 64), (64, 32), (32, 32))
LARGEST_AREA, QUALITY = 256 * 128, 0.08
RAMP = 37  # steps of k that take as long as filling a tile's pipeline and writing the tile out
SLICES = (1, 2, 4, 8)  # parts of a long k on different multiprocessors (split-K)
FULL_ALIGNMENT = 16  # bytes of the widest load; rows aligned to it are read at the full rate
# The share of the full rate that Tensor Cores reach if a matrix's rows are an odd multiple of 2
# bytes, and if they are a multiple of 4 or 8 bytes. cuBLAS uses Tensor Cores for all sizes since
# version 11, and is fastest if the rows of all three matrices are multiples of 16 bytes, or 8
# elements of 16 bits (NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2).
# Hopper: an H100 with torch 2.11 and CUDA 13 (benchmarks/results/gpu_h100.md). Six bf16 GEMMs
# with rows of odd length reach 0.13 to 0.20 of the modeled rate, bf16 at order 4100 reaches 0.34,
# and TF32 with rows of odd length 0.35.
# The others: an RTX 4090 in bf16, 111 TFLOP/s at the odd orders 2055, 2057, 2071 and 2073, and 156
# at 2040 (github.com/pytorch/pytorch issue 181718). The same table has 90 and 84 at 2056 and 2072,
# where cuBLAS picks a slow kernel although rows are multiples of 16 bytes; this is not modeled.
# Assumed: the same share for rows of 4 or 8 bytes, and for Volta, Turing, and Ampere;
# Blackwell as Hopper.
UNALIGNED = {"hopper": (0.17, 0.34), "blackwell": (0.17, 0.34)}
UNALIGNED_DEFAULT = (0.71, 0.71)


def alignment(*rows: int) -> int:
    """Return the largest power of two, at most 16, that divides the matrices' rows, in bytes."""
    return math.gcd(FULL_ALIGNMENT, *rows)


def rate(card: Card, dtype: str, aligned: int = FULL_ALIGNMENT) -> float:
    """Return the FLOP/s that large GEMMs reach.

    Args:
        card: the GPU model.
        dtype: dtype of the operands.
        aligned: result of `alignment`, in bytes.
    """
    full = card.tflops[dtype] * 1e12 * card.efficiency.matmul[dtype]
    if aligned == FULL_ALIGNMENT or dtype not in ("tf32", "fp16", "bf16"):
        return full
    odd, even = UNALIGNED.get(card.architecture, UNALIGNED_DEFAULT)
    return full * (odd if aligned <= 2 else even)


def matmul_seconds(card: Card, dtype: str, batch: int, m: int, n: int, k: int,
                   aligned: int = FULL_ALIGNMENT) -> float:
    """Return the compute time of `batch` GEMMs [m, k] x [k, n], in seconds, without memory traffic.

    Args:
        card: the GPU model.
        dtype: dtype of the operands.
        batch: number of GEMMs.
        m: rows of the first operand.
        n: columns of the second operand.
        k: the inner dimension.
        aligned: result of `alignment`, in bytes.
    """
    return min(seconds for seconds, _ in choices(card, dtype, batch, m, n, k, aligned))


def best_tile(card: Card, dtype: str, batch: int, m: int, n: int, k: int,
              aligned: int = FULL_ALIGNMENT) -> tuple[int, int, int]:
    """Return the fastest tile's rows and columns, and the number of slices of k.

    The arguments are those of matmul_seconds.
    """
    return min(choices(card, dtype, batch, m, n, k, aligned), key=lambda choice: choice[0])[1]


def choices(card: Card, dtype: str, batch: int, m: int, n: int, k: int, aligned: int
            ) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """Yield the time in seconds for each tile shape and number of slices.

    The arguments are those of matmul_seconds.
    """
    per_sm = rate(card, dtype, aligned) / card.sms
    for rows, columns in TILES:
        quality = (rows * columns / LARGEST_AREA) ** QUALITY
        tiles = batch * -(-m // rows) * -(-n // columns)
        for slices in SLICES:
            if slices > 1 and (k < 1024 * slices or tiles * slices > 2 * card.sms):
                break
            waves = -(-tiles * slices // card.sms)
            steps = k / slices + RAMP
            yield waves * 2 * rows * columns * steps / (per_sm * quality), (rows, columns, slices)
