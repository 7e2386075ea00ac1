"""Refusing a value, and finding the nearest right one."""

from __future__ import annotations

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
    divisors = [number for number in range(1, whole + 1) if whole % number == 0]
    below = [number for number in divisors if number < value][-1:]
    above = [number for number in divisors if number > value][:1]
    return " or ".join(map(str, below + above))
