"""Stateless dropout: a mask is a function of its place in the run, not of a generator's state.

The key of a mask is (seed, iteration, global sample, layer, site, head), and its bits are a hash of
the key and the position. So masks do not depend on how samples, layers, and heads are distributed
over ranks, resuming needs no random state, and recomputing a layer draws the same mask again.
The hash is a 32-bit multiply-xorshift mixer (constants: C. Wellons, lowbias32).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minimegatron.device.device import operation

# Sites of one layer; the embedding is layer 0, transformer layers count from 1.
EMBEDDING, ATTENTION_PROBABILITIES, ATTENTION_OUTPUT, MLP_OUTPUT = range(4)

_MASK64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """Return a bijection of 64-bit integers that mixes every input bit into every output bit
    (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int, bits: int) -> int:
    """Return the low `bits` of value as the two's-complement integer that torch can hold."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _scramble(x: torch.Tensor) -> torch.Tensor:
    """Mix x (int32) in place, one round. torch's >> is arithmetic, so the shifts are masked."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed(0x846CA68B, 32)
    x ^= (x >> 16) & 0xFFFF
    return x


def _scramble64(x: torch.Tensor) -> torch.Tensor:
    """Mix x (int64): for the few keys, where `_scramble` is for the many positions."""
    x = (x ^ ((x >> 32) & 0xFFFFFFFF)) * _signed(0xD6E8FEB86659FD93, 64)
    x = (x ^ ((x >> 32) & 0xFFFFFFFF)) * _signed(0xD6E8FEB86659FD93, 64)
    return x ^ ((x >> 32) & 0xFFFFFFFF)


@dataclass(frozen=True)
class Dropout:
    """Draws the dropout masks of one micro-batch.

    Attributes:
        seed: seed of the run.
        iteration: number of the step.
        samples: int64 [b], the samples' numbers in the whole run (not in the batch).
    """

    seed: int
    iteration: int
    samples: torch.Tensor

    def keep(self, p: float, layer: int, site: int, positions: int,
             heads: torch.Tensor | None = None, start: int = 0) -> torch.Tensor:
        """Return a mask that is True with probability 1 - p.

        Args:
            p: dropout probability.
            layer: number of the layer; 0 is the embedding.
            site: the place in the layer, such as ATTENTION_OUTPUT.
            positions: number of elements per sample, or per sample and head.
            heads: int64 [n], the heads' numbers in the whole model; None if there are no heads.
            start: first position, where this rank has only a part of them.

        Returns:
            The mask: bool [b, positions] or [b, heads, positions].
        """
        key = mix64(mix64(self.seed) ^ mix64(self.iteration << 24 | layer << 4 | site))
        return dropout_mask(self.samples, heads, _signed(key, 64), positions, start, p)


@operation()
def dropout_mask(samples: torch.Tensor, heads: torch.Tensor | None, key: int, positions: int,
                 start: int, p: float) -> torch.Tensor:
    """Hash a 64-bit key, the samples, the heads, and the positions; `Dropout.keep` describes the
    other arguments and the result."""
    hashed = _scramble64(samples + key)[:, None]
    if heads is not None:
        hashed = _scramble64(hashed + heads)[:, :, None]
    low = (hashed & 0xFFFFFFFF).to(torch.int32)
    high = (hashed >> 32).to(torch.int32) | 1
    # An affine map between two rounds combines position and key; each result is split into two
    # 16-bit draws, so p is rounded to a multiple of 2**-16.
    first, skip = divmod(start, 2)
    words = _scramble(torch.arange(first, (start + positions + 1) // 2, dtype=torch.int32,
                                   device=hashed.device))
    draws = _scramble(words * high + low).view(torch.int16)[..., skip:skip + positions]
    return draws >= _signed(round(p * (1 << 16)) - (1 << 15), 17)
