"""FP8 recipes: formats, and how a tensor's scale follows from its largest magnitude."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from virtualgpu.packages.refusals import refuse


class Format(Enum):
    """The FP8 formats of forward and backward passes."""

    E4M3 = (torch.float8_e4m3fn, torch.float8_e4m3fn)
    E5M2 = (torch.float8_e5m2, torch.float8_e5m2)
    HYBRID = (torch.float8_e4m3fn, torch.float8_e5m2)


class Recipe:
    """Base class of recipes."""

    def delayed(self) -> bool:
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        return isinstance(self, Float8CurrentScaling)


@dataclass(kw_only=True)
class DelayedScaling(Recipe):
    """Scales from the largest magnitudes of earlier steps."""

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: str | Callable = "max"
    scaling_factor_compute_algo: Callable | None = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    interval: int = -1

    def __post_init__(self) -> None:
        refuse("DelayedScaling", scaling_factor_compute_algo=self.scaling_factor_compute_algo,
               fp8_dpa=self.fp8_dpa or None, fp8_mha=self.fp8_mha or None)
        if self.amax_compute_algo not in ("max", "most_recent"):
            refuse("DelayedScaling", amax_compute_algo=self.amax_compute_algo)


@dataclass(kw_only=True)
class Float8CurrentScaling(Recipe):
    """A scale from the tensor's own largest magnitude."""

    margin: int = 0
    fp8_format: Format = Format.HYBRID
