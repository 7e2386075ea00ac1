"""Refusing a value, and finding the nearest right one."""

from __future__ import annotations

import math

from minimegatron.errors import UserError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def near_multiples(value: int, step: int) -> str:
    """The multiples of `step` on both sides of `value`, as text: what the user may want."""
    below = value // step * step
    return f"{below} or {below + step}" if below else str(step)


def near_divisors(value: int, whole: int) -> str:
    """The divisors of `whole` on both sides of `value`, as text."""
    small = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    divisors = {*small, *(whole // number for number in small)}
    below = max((number for number in divisors if number < value), default=None)
    above = min((number for number in divisors if number > value), default=None)
    return " or ".join(str(number) for number in (below, above) if number is not None)
