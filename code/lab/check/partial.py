"""Partial credit: a check whose parts earn points one by one.

In a notebook these are plain context managers. When a lab is graded, the parts are found in the
check's source (lab.build.parts) and run one by one on the trusted side; nothing that a student's
code prints, returns, or raises is read as a score.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab.check.checks import Failed, passed
from lab.check.sides import SEED_VARIABLE
from lab.colors import bad, good

INDENT = "    "


@dataclass(frozen=True)
class Outcome:
    """What came of one part.

    Attributes:
        points: what the part is worth.
        title: what it asks for.
        error: why it failed; None if it passed.
        is_decided: False if nothing can be said, because the student's code hung or died.
    """

    points: float
    title: str
    error: str | None = None
    is_decided: bool = True


_open: list[Outcome] | None = None


@contextlib.contextmanager
def parts() -> Iterator[None]:
    """Hold the parts of one check, each a `with check.part(...)`. Raises Failed at the end, with
    what each part earned, unless all of them passed."""
    global _open
    if _open is not None:
        raise RuntimeError("check.parts within check.parts: one check has one list of parts")
    _open = found = []
    try:
        yield
    finally:
        _open = None
    if earned(found) < total(found):
        raise Failed(report(found))
    passed(report(found))


@contextlib.contextmanager
def part(points: float, title: str) -> Iterator[None]:
    """Run one part of a check: what fails in it costs its points, and the next part runs.

    Args:
        points: what the part is worth; those of all parts sum to the check's.
        title: what it asks for, in a few words; students read it.
    """
    if _open is None:
        raise RuntimeError("check.part stands within `with check.parts():`")
    try:
        yield
    except Exception as error:
        # A grading kernel runs hidden tests, too, whose messages may hold what they expect.
        name = type(error).__name__
        text = str(error) if isinstance(error, Failed) else (
            name if SEED_VARIABLE in os.environ else f"{name}: {error}")
        _open.append(Outcome(points, title, text))
    else:
        _open.append(Outcome(points, title))


def earned(outcomes: Sequence[Outcome]) -> float:
    """Return the points of the parts that passed."""
    return math.fsum(one.points for one in outcomes if one.is_decided and one.error is None)


def total(outcomes: Sequence[Outcome]) -> float:
    return math.fsum(one.points for one in outcomes)


def report(outcomes: Sequence[Outcome]) -> str:
    """Return one line per part, and below it why it failed. Messages are indented, line by line,
    so that no text of a student's can look like another part."""
    lines = [f"{earned(outcomes):g} of {total(outcomes):g} points"]
    for one in outcomes:
        sign = "?" if not one.is_decided else good("✓") if one.error is None else bad("✗")
        lines.append(f"{sign} {one.points:g} point{'' if one.points == 1 else 's'}: {one.title}")
        lines += [INDENT + line for line in (one.error or "").splitlines()]
    return "\n".join(lines)
