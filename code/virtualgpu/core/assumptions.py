"""Assumptions that a modeled run makes because it cannot know better.

A figure that rests on an assumption is only as good as the assumption, so every one that is made is
recorded here, and the report prints them all.
"""

from __future__ import annotations

from typing import NamedTuple


class Assumption(NamedTuple):
    """One assumption, and the line of the program that it concerns, if any."""

    text: str
    file: str | None = None
    line: int | None = None


class Assumptions:
    """All assumptions of a virtual GPU, in order, with how often each was made."""

    def __init__(self) -> None:
        self.made: dict[Assumption, int] = {}

    def note(self, text: str, file: str | None = None, line: int | None = None) -> None:
        """Record one more use of an assumption.

        Args:
            text: the assumption, as a sentence.
            file: the program's file where it was made.
            line: the line in that file.
        """
        one = Assumption(text, file, line)
        self.made[one] = self.made.get(one, 0) + 1
