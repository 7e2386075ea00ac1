"""Assumptions that a modeled run makes because it cannot know better.

A modeled figure is only as good as the assumptions behind it, so each is recorded here, and the
report prints them all.
"""

from __future__ import annotations

from typing import NamedTuple


class Assumption(NamedTuple):
    """One assumption, and the line of the program that it concerns, if any."""

    text: str
    file: str | None = None
    line: int | None = None


class Assumptions:
    """The assumptions of a run on a virtual GPU, in order, and how often each was made."""

    def __init__(self) -> None:
        self.counts: dict[Assumption, int] = {}

    def note(self, text: str, file: str | None = None, line: int | None = None) -> None:
        """Record one more use of an assumption.

        Args:
            text: the assumption, as a sentence.
            file: the program's file that it concerns.
            line: the line in that file.
        """
        assumption = Assumption(text, file, line)
        self.counts[assumption] = self.counts.get(assumption, 0) + 1
