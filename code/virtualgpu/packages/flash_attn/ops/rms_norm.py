"""RMSNorm of flash_attn's older CUDA extension."""

from __future__ import annotations

from torch import Tensor

from .triton.layer_norm import RMSNorm, rms_norm_fn

__all__ = ["RMSNorm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm_fn(x, weight, None, eps=epsilon)
