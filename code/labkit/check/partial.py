"""Partial credit: a check whose parts earn points separately.

In a notebook these are plain context managers. When a lab is graded, the parts are found in the
check's source (labkit.build.parts) and run one by one on the trusted side; nothing that a student's
code prints, returns, or raises is read as a score.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labcore.colors import bad, good
from labkit.check.checks import Failed, passed
from labkit.check.sides import SEED_VARIABLE

INDENT = "    "


@dataclass(frozen=True)
class PartResult:
    """The outcome of one part.

    Attributes:
        points: the points that the part is worth.
        title: a short description of the part.
        error: why it failed; None if it passed.
        is_decided: False if there is no verdict, because the student's code hung or crashed.
    """

    points: float
    title: str
    error: str | None = None
    is_decided: bool = True


_open: list[PartResult] | None = None


@contextlib.contextmanager
def parts() -> Iterator[None]:
    """Enclose the parts of one check, each of them a `with check.part(...)`.

    Raises Failed at the end, with the points that each part earned, unless all of them passed.
    """
    global _open
    if _open is not None:
        raise RuntimeError("check.parts inside check.parts: a check has only one list of parts")
    _open = outcomes = []
    try:
        yield
    finally:
        _open = None
    if earned(outcomes) < total(outcomes):
        raise Failed(report(outcomes))
    passed(report(outcomes))


@contextlib.contextmanager
def part(points: float, title: str) -> Iterator[None]:
    """Run one part of a check. A failure costs the part's points, and the next part still runs.

    Args:
        points: the points that the part is worth; all parts sum to the check's points.
        title: a short description of the part, which students read.
    """
    if _open is None:
        raise RuntimeError("check.part is only valid inside `with check.parts():`")
    try:
        yield
    except Exception as error:
        # A grading kernel runs hidden tests, too, whose messages may contain the expected values.
        name = type(error).__name__
        text = str(error) if isinstance(error, Failed) else (
            name if SEED_VARIABLE in os.environ else f"{name}: {error}")
        _open.append(PartResult(points, title, text))
    else:
        _open.append(PartResult(points, title))


def earned(outcomes: Sequence[PartResult]) -> float:
    """Return the points of the parts that passed."""
    return math.fsum(one.points for one in outcomes if one.is_decided and one.error is None)


def total(outcomes: Sequence[PartResult]) -> float:
    return math.fsum(one.points for one in outcomes)


def report(outcomes: Sequence[PartResult]) -> str:
    """Return one line per part, followed by the error of a failed one.

    Messages are indented line by line, so that a student's text cannot imitate another part.
    """
    lines = [f"{earned(outcomes):g} of {total(outcomes):g} points"]
    for one in outcomes:
        sign = "?" if not one.is_decided else good("✓") if one.error is None else bad("✗")
        lines.append(f"{sign} {one.points:g} point{'' if one.points == 1 else 's'}: {one.title}")
        lines += [INDENT + line for line in (one.error or "").splitlines()]
    return "\n".join(lines)
