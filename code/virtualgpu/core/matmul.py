"""How long a matrix product takes: tiles, waves and the data sheet.

A product [m, k] x [k, n] is cut into tiles of the result; a multiprocessor computes one at a time,
and all of them finish a wave of tiles together. A last wave that is not full, tiles that overhang
and a short k waste a part of the peak. As the libraries do, the quickest of a few tile shapes is
taken. (The scheme is the one NVIDIA's "Matrix Multiplication Background" guide explains.)
"""

from __future__ import annotations

from collections.abc import Iterator

from virtualgpu.core.card import Card

# Rows and columns of a tile. Small ones fetch more bytes for a FLOP: the rate goes with the area's
# QUALITY-th power. QUALITY and RAMP are fitted to half of vTrain's measured iterations on the A100
# (benchmarks/virtual_calibration.py).
TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
         (32, 64), (64, 32), (32, 32))
BEST, QUALITY = 256 * 128, 0.08
RAMP = 37  # filling a tile's pipeline and writing it out take as long as so many steps of k
SLICES = (1, 2, 4, 8)  # a long k may be divided among multiprocessors
ALIGNED = 8  # elements of 16 bits that Tensor Cores want rows to be multiples of


def rate(card: Card, dtype: str, m: int, n: int, k: int) -> float:
    """FLOP/s that large products of this type and alignment reach."""
    share = card.efficiency.matmul
    if dtype in ("fp16", "bf16") and (m % ALIGNED or n % ALIGNED or k % ALIGNED):
        if card.architecture == "volta":
            return card.half * 1e12 * share["fp32"]  # no Tensor Cores for such shapes
        return card.tflops[dtype] * 1e12 * share[dtype] / 2
    return card.tflops[dtype] * 1e12 * share[dtype]


def matmul_seconds(card: Card, dtype: str, batch: int, m: int, n: int, k: int) -> float:
    """Seconds of the arithmetic of `batch` products [m, k] x [k, n]; the caller adds what the
    memory needs."""
    return min(seconds for seconds, _ in choices(card, dtype, batch, m, n, k))


def best_tile(card: Card, dtype: str, batch: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """The quickest tile's rows and columns, and how many parts k is cut into."""
    return min(choices(card, dtype, batch, m, n, k), key=lambda choice: choice[0])[1]


def choices(card: Card, dtype: str, batch: int, m: int, n: int, k: int
            ) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """Seconds with each tile shape and number of slices."""
    per_sm = rate(card, dtype, m, n, k) / card.sms
    for rows, columns in TILES:
        quality = (rows * columns / BEST) ** QUALITY
        tiles = batch * -(-m // rows) * -(-n // columns)
        for slices in SLICES:
            if slices > 1 and (k < 1024 * slices or tiles * slices > 2 * card.sms):
                break
            waves = -(-tiles * slices // card.sms)
            steps = k / slices + RAMP
            yield waves * 2 * rows * columns * steps / (per_sm * quality), (rows, columns, slices)
