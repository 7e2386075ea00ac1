"""Dropout without state: a mask is a function of what it is for, not of who asked before.

The key of a mask is (seed, iteration, global sample, layer, site, head); its bits are a hash of
the key and the position. So masks do not depend on how samples, layers or heads are spread over
ranks, resuming needs no random state, and recomputing a layer draws the same mask again.
The hash is built of a 32-bit multiply-xorshift mixer (constants: C. Wellons, lowbias32).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Sites of one layer; the embedding is layer 0, transformer layers count from 1.
EMBEDDING, ATTENTION_PROBABILITIES, ATTENTION_OUTPUT, MLP_OUTPUT = range(4)

_MASK64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """A 64-bit bijection in which every input bit reaches every output bit (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int, bits: int) -> int:
    """The two's-complement integer that torch's signed types can hold."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _scramble(x: torch.Tensor) -> torch.Tensor:
    """One round over int32, in place. torch's >> is arithmetic, so the shifts are masked."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed(0x846CA68B, 32)
    x ^= (x >> 16) & 0xFFFF
    return x


def _scramble64(x: torch.Tensor) -> torch.Tensor:
    """The same idea over int64: for the few keys, not for the many positions."""
    x = (x ^ ((x >> 32) & 0xFFFFFFFF)) * _signed(0xD6E8FEB86659FD93, 64)
    x = (x ^ ((x >> 32) & 0xFFFFFFFF)) * _signed(0xD6E8FEB86659FD93, 64)
    return x ^ ((x >> 32) & 0xFFFFFFFF)


@dataclass(frozen=True)
class Dropout:
    """Draws the masks of one micro-batch.

    samples: int64 [b], the samples' numbers in the whole run (not in the batch).
    """

    seed: int
    iteration: int
    samples: torch.Tensor

    def keep(self, p: float, layer: int, site: int, positions: int,
             heads: torch.Tensor | None = None, start: int = 0) -> torch.Tensor:
        """Bool mask, True with probability 1 - p: [b, positions] or [b, heads, positions].

        heads: int64 [n], the heads' numbers in the whole model. start: the first position, where
        only a part of them lives on this rank.
        """
        if self.samples.is_meta:  # no bits: the kernel that uses the mask draws it there
            shape = [len(self.samples), *([] if heads is None else [len(heads)]), positions]
            return torch.empty(shape, dtype=torch.bool, device="meta")
        base = mix64(mix64(self.seed) ^ mix64(self.iteration << 24 | layer << 4 | site))
        key = _scramble64(self.samples + _signed(base, 64))[:, None]
        if heads is not None:
            key = _scramble64(key + heads)[:, :, None]
        low = (key & 0xFFFFFFFF).to(torch.int32)
        high = (key >> 32).to(torch.int32) | 1
        # Position and key meet in an affine map between two rounds; each result is cut into two
        # 16-bit draws, so p is rounded to a multiple of 2**-16.
        first, skip = divmod(start, 2)
        words = _scramble(torch.arange(first, (start + positions + 1) // 2, dtype=torch.int32,
                                       device=key.device))
        draws = _scramble(words * high + low).view(torch.int16)[..., skip:skip + positions]
        return draws >= _signed(round(p * (1 << 16)) - (1 << 15), 17)
