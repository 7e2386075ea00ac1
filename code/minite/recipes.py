"""Recipes: the FP8 format and the scale of each tensor.

The names, fields, and defaults are those of `transformer_engine.common.recipe`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import torch


class Format(Enum):
    """The FP8 formats of the forward and the backward pass, as torch's dtypes.

    HYBRID gives gradients E5M2's range, and activations and weights E4M3's precision
    (Micikevicius et al. 2022, arXiv:2209.05433).
    """

    E4M3 = (torch.float8_e4m3fn, torch.float8_e4m3fn)
    E5M2 = (torch.float8_e5m2, torch.float8_e5m2)
    HYBRID = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass
class Recipe:
    """Base class of all recipes.

    Attributes:
        ROWS: divisor of the product of all dimensions but the last.
        COLUMNS: divisor of the last dimension.
        fp8_format: formats of the forward and the backward pass.
    """

    ROWS: ClassVar[int] = 8
    COLUMNS: ClassVar[int] = 16
    fp8_format: Format = Format.HYBRID

    def __post_init__(self) -> None:
        if not isinstance(self.fp8_format, Format) or self.fp8_format is Format.E5M2:
            raise ValueError(f"fp8_format={self.fp8_format}: training needs Format.HYBRID or "
                             "Format.E4M3; two mantissa bits are too few for the forward pass")

    def dtype(self, role: str) -> torch.dtype:
        """Return the FP8 dtype of an "input", a "weight", or a "grad"."""
        return self.fp8_format.value[role == "grad"]

    def check_shape(self, tensor: torch.Tensor, name: str) -> None:
        """Raise ValueError unless FP8 GEMMs can read the tensor."""
        rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        for size, multiple, description in (
                (rows, self.ROWS, "the product of all dimensions but the last"),
                (columns, self.COLUMNS, "the last dimension")):
            if size % multiple:
                lower = size // multiple * multiple
                nearest = f"{lower} and {lower + multiple}" if lower else f"{multiple}"
                raise ValueError(
                    f"{name} of shape {tuple(tensor.shape)}: {type(self).__name__} needs "
                    f"{description} to be divisible by {multiple}, not {size}; the nearest that "
                    f"fit: {nearest}")


@dataclass
class DelayedScaling(Recipe):
    """One scale per tensor, from the amax of earlier steps.

    Attributes:
        margin: the scale is divided by 2^margin.
        amax_history_len: the number of steps that the history holds.
        amax_compute_algo: "max" of the history, its "most_recent" step, or a function from the
            history [steps, tensors] to amax [tensors].
        reduce_amax: take the maximum over the ranks of fp8_group.
    """

    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable[[torch.Tensor], torch.Tensor] = "max"
    reduce_amax: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.amax_history_len < 1:
            raise ValueError(f"amax_history_len={self.amax_history_len}: expected at least 1")
        algo = self.amax_compute_algo
        if not callable(algo) and algo not in ("max", "most_recent"):
            raise ValueError(f'amax_compute_algo={algo!r}: expected "max", "most_recent", or a '
                             'function')


@dataclass
class Float8CurrentScaling(Recipe):
    """One scale per tensor, from the tensor's own amax."""

    use_power_2_scales: bool = False


@dataclass
class Float8BlockScaling(Recipe):
    """One scale per 1x128 block of activations and gradients, and per 128x128 block of weights.

    Source: DeepSeek-V3 (2024, arXiv:2412.19437, section 3.3). Scales are float32, and powers of
    two unless use_f32_scales.
    """

    ROWS: ClassVar[int] = 128
    COLUMNS: ClassVar[int] = 128
    fp8_format: Format = Format.E4M3
    use_f32_scales: bool = False


@dataclass
class MXFP8BlockScaling(Recipe):
    """One power-of-two scale (E8M0) per 1x32 block (OCP Microscaling Formats 1.0)."""

    ROWS: ClassVar[int] = 32
    COLUMNS: ClassVar[int] = 32
    fp8_format: Format = Format.E4M3
