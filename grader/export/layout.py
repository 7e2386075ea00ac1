"""The contents of an LMS's file, independent of the LMS."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from grader.export.sheet import Sheet


@dataclass(frozen=True)
class Identity:
    """One identifier in a row: its heading, its value, and the column of the roster it may
    match."""

    heading: str
    kind: str  # a column of the roster: id | email | lms_user_id
    value: str


@dataclass(frozen=True)
class Entry:
    """A row with a student in it."""

    row: int
    identities: tuple[Identity, ...]
    name: str
    number: str = ""  # the LMS's own: of the user (Canvas) or of the participant (Moodle)
    locked: str = ""  # why the LMS takes no grade for this row


@dataclass(frozen=True)
class Column:
    """A column that takes the grades of one assignment."""

    index: int
    heading: str
    title: str  # the assignment's, without what the LMS puts around it
    number: str = ""  # the assignment's id
    most: float | None = None  # points; None: the file does not tell


@dataclass(frozen=True)
class LmsFile:
    """The contents of an LMS's file.

    Attributes:
        lms: Canvas or Moodle.
        excused: the LMS's word for an excused student in a grade cell; empty if it has none.
        not_assigned: its word for a student who does not have the assignment.
        one_assignment: whether the file belongs to one assignment, which it does not name.
    """

    lms: str
    sheet: Sheet
    entries: tuple[Entry, ...]
    columns: tuple[Column, ...]
    excused: str
    not_assigned: str = ""
    one_assignment: bool = False


def number_in(text: str) -> float | None:
    """Return the number in a cell, with a decimal point or a decimal comma; None for no number."""
    text = text.strip()
    if not re.fullmatch(r"[+-]?\d{1,15}([.,]\d{1,15})?", text):
        return None
    return float(text.replace(",", "."))


def written(score: float) -> str:
    """Return a score as both LMSs read it: with a decimal point, and at most five decimals.

    Moodle stores five decimals. Raises ValueError for anything that is not a score.
    """
    if not math.isfinite(score) or score < 0:
        raise ValueError(f"{score} is not a score")
    return f"{score:.5f}".rstrip("0").rstrip(".")
