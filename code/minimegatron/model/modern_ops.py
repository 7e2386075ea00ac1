"""Operations of the modern block in plain torch; a virtual GPU models them as fused kernels."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from minimegatron.device.dispatch import operation


@operation()
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2 of x [..] (So et al. 2021, Primer)."""
    return F.relu(x).square()


@operation()
def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return SiLU(gate) * up [.., f], where x [.., 2f] is gate and up side by side (Shazeer 2020).

    The product is computed in fp32 and rounded once, as in a fused kernel.
    """
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


@operation()
def rotary(x: torch.Tensor, rotated: int, base: int) -> torch.Tensor:
    """Rotate pairs of channels by angles that grow with the position (Su et al. 2021, RoPE).

    Channel i is paired with channel i + rotated/2 and turned by position * base^(-2i/rotated), as
    in Megatron-LM and Llama. Angles and products are computed in fp32.

    Args:
        x: queries or keys, [s, n, d], of positions 0 to s - 1.
        rotated: channels of each head that are rotated, an even number; the others stay.
        base: the base of the angles' frequencies.

    Returns:
        A new tensor, [s, n, d].
    """
    cos, sin = rotary_tables(len(x), rotated, base, x.device)
    first, second, rest = x.float().split([rotated // 2, rotated // 2, x.shape[-1] - rotated], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)


@lru_cache(maxsize=4)
def rotary_tables(length: int, rotated: int, base: int, device: torch.device
                  ) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, fp32 [s, 1, rotated/2], of the angles of all positions.

    Args:
        length: positions, s.
        rotated: channels of each head that are rotated.
        base: the base of the angles' frequencies.
        device: where the result is created.
    """
    frequencies = base ** -(torch.arange(0, rotated, 2, device=device) / rotated)
    angles = torch.outer(torch.arange(length, device=device), frequencies)[:, None]
    return angles.cos(), angles.sin()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divide x [.., h] by its root mean square, and scale by weight [h] (Zhang & Sennrich 2019)."""
    return F.rms_norm(x, weight.shape, weight, epsilon)
