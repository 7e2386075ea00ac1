"""Numerics: rounding to FP8 with saturation, scales from amax, blocks, and the amax history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = torch.finfo(torch.float32).max
BLOCK, MX_BLOCK = 128, 32


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest FP8 number, ties to even, and saturate at the largest one.

    Without saturation, E5M2 would overflow to infinity. NaN stays NaN.
    """
    largest = torch.finfo(dtype).max
    return x.float().clamp(-largest, largest).to(dtype)


def amax_of(x: Tensor) -> Tensor:
    """Return the largest absolute value as a float32 scalar."""
    return x.detach().abs().amax().float()


def scale_from_amax(amax: Tensor, dtype: torch.dtype, margin: int = 0, power_of_2: bool = False,
                    fallback: Tensor | float = 1.0) -> Tensor:
    """Return the scale that maps amax to the largest FP8 number, divided by 2^margin.

    Args:
        amax: float32 tensor of any shape.
        dtype: the FP8 dtype.
        margin: the scale is divided by 2^margin.
        power_of_2: round the scale down to a power of two, which loses no mantissa bits.
        fallback: the scale where amax is 0, infinite, or NaN.
    """
    scale = (torch.finfo(dtype).max / amax / 2.0**margin).clamp(max=LARGEST)
    if power_of_2:
        scale = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)
    usable = (amax > 0) & torch.isfinite(amax)
    return torch.where(usable, scale, torch.as_tensor(fallback, device=amax.device))


def update_history(history: Tensor, scale: Tensor, dtype: torch.dtype, margin: int = 0,
                   algo: str | Callable[[Tensor], Tensor] = "max") -> tuple[Tensor, Tensor]:
    """End a step of delayed scaling; return the next history and the next scale.

    As in Transformer Engine (`kernel_bulk` in common/recipe/delayed_scaling.cu), a tensor whose
    amax is 0 was not used: its history and its scale stay as they are. An infinite amax enters the
    history, and with "max", the scale stays as it is until it has left. NaN loses against any
    number. With a function as `algo`, every step enters the history.

    Args:
        history: amax per step and tensor, [steps, tensors]; row 0 is the step that ends.
        scale: the scale that this step used, [tensors].
        dtype: the FP8 dtype.
        margin: see scale_from_amax.
        algo: see DelayedScaling.amax_compute_algo.
    """
    following = history.roll(-1, 0)
    following[0] = 0
    if callable(algo):
        return following, scale_from_amax(algo(history), dtype, margin, fallback=scale)
    recorded = history[0] != 0
    amax = history[0] if algo == "most_recent" else torch.where(
        history.isnan(), 0, history).amax(0)
    return (torch.where(recorded, following, history),
            scale_from_amax(torch.where(recorded, amax, 0), dtype, margin, fallback=scale))


@dataclass(frozen=True)
class Quantized:
    """A matrix in FP8.

    Attributes:
        data: float8, [rows, columns].
        scale_inv: 1 / scale; a scalar, or one per block, [rows / r, columns / c].
        block: (r, c), or None for one scale per tensor.
    """

    data: Tensor
    scale_inv: Tensor
    block: tuple[int, int] | None = None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return data x scale_inv."""
        scale_inv = self.scale_inv.float()
        if self.block is not None:
            rows, columns = self.block
            scale_inv = scale_inv.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return (self.data.float() * scale_inv).to(dtype)

    def t(self) -> Quantized:
        """Return the transpose, with the same values."""
        return Quantized(self.data.t().contiguous(), self.scale_inv.t(),
                         self.block and self.block[::-1])


def quantize_tensor(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Quantized:
    """Quantize a matrix with one scale."""
    return Quantized(cast(x.float() * scale, dtype), scale.reciprocal())


def quantize_blocks(x: Tensor, dtype: torch.dtype, block: tuple[int, int] = (1, BLOCK),
                    power_of_2: bool = True) -> Quantized:
    """Quantize a matrix [rows, columns] with one float32 scale per block."""
    tiles = _tiles(x, block)
    scale = scale_from_amax(tiles.abs().amax((1, 3)), dtype, power_of_2=power_of_2)
    data = cast(tiles * scale[:, None, :, None], dtype).view(x.shape)
    return Quantized(data, scale.reciprocal(), block)


def quantize_mx(x: Tensor, dtype: torch.dtype) -> Quantized:
    """Quantize a matrix with one E8M0 exponent per 32 values of a row.

    The exponent is rounded up, as on Blackwell, so that no value saturates. The OCP format rounds
    it down, so the largest values saturate.
    """
    tiles = _tiles(x, (1, MX_BLOCK))
    mantissa, exponent = torch.frexp(tiles.abs().amax((1, 3)) / torch.finfo(dtype).max)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(-127, 127)
    exponent = torch.where(mantissa > 0, exponent, -127)
    biased = (exponent + 127).to(torch.uint8)  # E8M0's bits
    # Scale in two steps, because 2^-exponent itself can overflow or underflow float32.
    half = exponent // 2
    scaled = torch.ldexp(torch.ldexp(tiles, -half[:, None, :, None]),
                         -(exponent - half)[:, None, :, None])
    return Quantized(cast(scaled, dtype).view(x.shape), biased.view(torch.float8_e8m0fnu),
                     (1, MX_BLOCK))


def _tiles(x: Tensor, block: tuple[int, int]) -> Tensor:
    """Split a matrix into blocks: [rows / r, r, columns / c, c], float32."""
    if x.shape[0] % block[0] or x.shape[1] % block[1]:
        raise ValueError(f"a matrix of shape {tuple(x.shape)} cannot be divided into blocks of "
                         f"{block[0]}x{block[1]}")
    return x.detach().float().unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0]))
