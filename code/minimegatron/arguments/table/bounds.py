"""Intervals of accepted values, with Megatron-LM's wording of the error where it has one."""

from __future__ import annotations

import math
from dataclasses import dataclass

A_YEAR = 365 * 24 * 60  # minutes
LARGEST_POWER = 2.0**127  # of the powers of two that fp32 can represent


@dataclass(frozen=True)
class Bound:
    """An interval of accepted values.

    Attributes:
        message: what an error says of any other value; {flag} stands for the flag's spelling.
        low, high: the ends, which are accepted.
        above, below: the ends, which are not.
    """

    message: str
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def accepts(self, value: float) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below


AT_LEAST_1 = Bound("must be at least 1", low=1)
NOT_NEGATIVE = Bound("must not be negative", low=0)
POSITIVE = Bound("must be greater than 0", above=0)
FRACTION = Bound("must be in [0, 1)", low=0, below=1)
SEED = Bound(f"must be from 0 to {2**32 - 1}", low=0, high=2**32 - 1)
UP_TO_A_YEAR = Bound(f"nearest: {A_YEAR}", high=A_YEAR)
SCALE = "must be greater than 0 and at most 2**127; nearest: {flag} "
LOSS_SCALE = (Bound(f"{SCALE}1.0", above=0), Bound(f"{SCALE}{LARGEST_POWER}", high=LARGEST_POWER))
COUNT = Bound("must be at least 1; nearest: {flag} 1", low=1)
