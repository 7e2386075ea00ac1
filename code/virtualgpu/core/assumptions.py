"""What a modeled run takes for granted because it cannot know better: part of every result.

A number that rests on an assumption is only as good as the assumption, so whoever makes one notes
it here, and the report prints all of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Assumption(NamedTuple):
    """One thing taken for granted, and the program's line that it concerns, if there is one."""

    text: str
    file: str | None = None
    line: int | None = None


class Assumptions:
    """Everything that a virtual GPU assumed, in order, with how often."""

    def __init__(self) -> None:
        self.made: dict[Assumption, int] = {}

    def note(self, text: str, file: str | None = None, line: int | None = None) -> None:
        """Note one more use of an assumption.

        Args:
            text: the assumption, as a sentence.
            file: the program's file where it was made.
            line: the line in that file.
        """
        one = Assumption(text, file, line)
        self.made[one] = self.made.get(one, 0) + 1
