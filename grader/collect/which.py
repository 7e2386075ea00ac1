"""Determine which lab a notebook belongs to. JupyterLab and LMSs rename files, but not the
cells."""

from __future__ import annotations

import itertools
import re

from grader.course import Course
from grader.course.submitted import LARGEST

MOST_NAMES = 10_000
# Notebooks are not parsed here: 20 MB of brackets would be gigabytes of lists. In a cell's text
# and in outputs the quotation marks stand behind a backslash, so nothing there is found.
_NAME = re.compile(rb'"grade_id"\s{0,20}:\s{0,20}"([^"\\]{1,200})"')
# "lab (2)", "lab-1", "lab-Copy1", "Copy of lab", "lab_v2", "lab final"
# Possessive: a file's name is the student's, and "11111111x" could be split in too many ways.
_SUFFIX = re.compile(r"(?i)([ _-]*+(\(\d++\)|copy\d*+|v?+\d{1,3}+|final|submission))*+")


class Labs:
    """The labs of a course, identified by the names of their cells."""

    def __init__(self, course: Course) -> None:
        self.cells = {lab: _cells(course, lab) for lab in course.labs()}

    def find(self, content: bytes, name: str, only: str | None = None) -> str:
        """Return the lab that a notebook belongs to.

        Args:
            content: the notebook.
            name: its file name.
            only: the only lab to accept.

        Raises LookupError with the reason.
        """
        if not content.strip():
            raise LookupError("it is empty")
        inside = _names(content)
        shares = {lab: len(inside & cells) for lab, cells in self.cells.items() if cells}
        most = max(shares.values(), default=0)
        best = [lab for lab, share in shares.items() if share == most and most]
        named = [lab for lab in self.cells if _is_called(name, lab)]
        candidates = [lab for lab in best if lab in named] or best or named
        if only and only in candidates:
            return only
        if len(candidates) == 1 and only is None:
            return candidates[0]
        if not candidates:
            raise LookupError("neither its cells nor its name belong to a lab")
        raise LookupError(f"it belongs to {' or '.join(candidates)}"
                          + (f", not {only}" if only else ": name one with --lab"))


def _cells(course: Course, lab: str) -> set[str]:
    """Return the names of the cells in the lab's source, here or in the checkout."""
    for path in (course.notebook("source", lab), course.source_of(lab) / f"{lab}.ipynb"):
        if path.is_file():
            return _names(path.read_bytes()[:LARGEST])
    return set()


def _names(content: bytes) -> set[str]:
    matches = itertools.islice(_NAME.finditer(content), MOST_NAMES)
    return {match[1].decode(errors="replace") for match in matches}


def _is_called(name: str, lab: str) -> bool:
    stem = re.sub(r"(?i)^copy of ", "", name.removesuffix(".ipynb"))
    return stem.startswith(lab) and bool(_SUFFIX.fullmatch(stem[len(lab):]))
