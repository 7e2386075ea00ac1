"""The declaration of a contest: data, and a few functions that its author writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Given = Mapping[str, Any]  # the entry function's argument: plain values (labkit.check.wire)

RESERVED = ("grade", "table", "collect")  # subcommands of `lab contest`
MOST_DRAWS = 1000  # attempts to draw a secret case that differs from the others


class Disqualified(Exception):
    """Raised for an answer that does not count in one case.

    Args:
        kind: a few words that do not depend on the case, such as "deadlock". Only these are shown
            to the class.
        reason: what is wrong, with numbers.
        hint: what to do about it.
    """

    def __init__(self, kind: str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.kind, self.reason, self.hint = kind, reason, hint


@dataclass(frozen=True)
class Scored:
    """A valid answer's score, above 0 and at most 1; `note` says how it was computed."""

    score: float
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One case. `name` is its group and a number."""

    name: str
    group: str
    given: Given


@dataclass(frozen=True)
class CaseGroup:
    """Cases of one kind.

    Attributes:
        name: one word, used as the column heading in tables.
        title: what its cases have in common.
        open: the public practice cases.
        draw: returns a secret case, using no randomness except the Random passed to it.
        secret: the number of secret cases.
    """

    name: str
    title: str
    open: Sequence[Given]
    draw: Callable[[Random], Given]
    secret: int


@dataclass(frozen=True)
class Ghost:
    """A published algorithm that takes part. `answer` is called as a student's function is."""

    name: str
    source: str
    answer: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Contest:
    """A contest.

    Attributes:
        name: the name of its file, without .py.
        title: the title shown to people.
        rules: the function's input, its output, and how the output is scored.
        file: the file name of a submission.
        entry: the name of the function in it, which takes one case, a dictionary.
        seconds: time limit of one call on a student's machine.
        groups: the cases.
        score: scores an answer, which may be any plain value; raises Disqualified.
        ghosts: the published algorithms.
        masks: dotted names that files may not use, as check.mask takes them. Without any, a file
            may call a ghost's own algorithm and tie with it.

    Raises ValueError for an inconsistent declaration.
    """

    name: str
    title: str
    rules: str
    file: str
    entry: str
    seconds: float
    groups: Sequence[CaseGroup]
    score: Callable[[Given, Any], Scored]
    ghosts: Sequence[Ghost]
    masks: Sequence[str] = ()

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        wrong = (
            f"the name {self.name!r}" if not re.fullmatch("[a-z][a-z0-9_]{0,30}", self.name)
            or self.name in RESERVED else
            f"the file {self.file!r}" if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}\.py", self.file)
            else f"the entry {self.entry!r}" if not self.entry.isidentifier()
            else f"{self.seconds!r} seconds" if not 0 < self.seconds <= 60
            else f"the groups {names}" if not names or len(set(names)) < len(names)
            else next((f"group {group.name}: its numbers of cases" for group in self.groups
                       if not group.open or group.secret < 1), ""))
        if wrong:
            raise ValueError(f"contest {self.name}: invalid: {wrong}")

    def open_cases(self) -> list[Case]:
        """Return the public practice cases."""
        return [Case(f"{group.name} {number}", group.name, given) for group in self.groups
                for number, given in enumerate(group.open, 1)]

    def secret_cases(self, seed: str) -> list[Case]:
        """Draw the secret cases, without duplicates and without open cases.

        Args:
            seed: the same seed gives the same cases.

        Raises ValueError if a group has too few distinct cases.
        """
        seen = {_key(case.given) for case in self.open_cases()}
        return [Case(f"{group.name} {number}", group.name, _new(group, source, seen))
                for group in self.groups for source in [Random(f"{seed}/{group.name}")]
                for number in range(1, group.secret + 1)]


def _new(group: CaseGroup, source: Random, seen: set[str]) -> Given:
    for _ in range(MOST_DRAWS):
        given = group.draw(source)
        if _key(given) not in seen:
            seen.add(_key(given))
            return given
    raise ValueError(f"group {group.name}: {MOST_DRAWS} draws gave no new case")


def _key(given: Given) -> str:
    return json.dumps(given, sort_keys=True)
