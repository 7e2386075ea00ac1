"""Errors whose text is meant for the user, and lines that several ranks print into one log."""

from __future__ import annotations

import math
import sys
from typing import TextIO


class UserError(Exception):
    """An error that the user can fix; programs print `error: TEXT` to stderr and exit with 1."""


class SharedError(UserError):
    """An error that every rank raises at the same point; only rank 0 prints it."""


def require(condition: bool, message: str) -> None:
    """Raise UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def near_multiples(value: int, step: int) -> str:
    """Return the nearest positive multiples of `step` below and above `value`: "8 or 12"."""
    below = value // step * step
    return f"{below} or {below + step}" if below else str(step)


def near_divisors(value: int, dividend: int) -> str:
    """Return the nearest divisors of `dividend` below and above `value`: "2 or 4"."""
    small = [number for number in range(1, math.isqrt(dividend) + 1) if dividend % number == 0]
    divisors = {*small, *(dividend // number for number in small)}
    below = max((number for number in divisors if number < value), default=None)
    above = min((number for number in divisors if number > value), default=None)
    return " or ".join(str(number) for number in (below, above) if number is not None)


def emit(text: str, stream: TextIO | None = None) -> None:
    """Print lines with one write, so that another rank cannot print in between.

    Under `python -u`, `print` writes a line and its line break separately.

    Args:
        text: one or more lines.
        stream: standard output by default.
    """
    stream = stream or sys.stdout
    stream.write(text + "\n")
    stream.flush()
