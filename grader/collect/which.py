"""Determine which lab a notebook belongs to. JupyterLab and LMSs rename files, but not the
cells."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from grader.course import Course
from grader.course.submitted import LARGEST
from labcore import shipping
from labcore.workspace import CHECKOUT

MOST_NAMES = 10_000
# Notebooks are not parsed here: 20 MB of brackets would be gigabytes of lists. In a cell's text
# and in outputs the quotation marks stand behind a backslash, so nothing there is found.
_NAME = re.compile(rb'"grade_id"\s{0,20}:\s{0,20}"([^"\\]{1,200})"')
# "lab (2)", "lab-1", "lab-Copy1", "Copy of lab", "lab_v2", "lab final"
# Possessive: a file's name is the student's, and "11111111x" could be split in too many ways.
_SUFFIX = re.compile(r"(?i)([ _-]*+(\(\d++\)|copy\d*+|v?+\d{1,3}+|final|submission))*+")


class NotOfALab(LookupError):
    """Raised when a notebook is not taken.

    Attributes:
        lab: the lab that it was meant for, if known.
        advice: what the instructor may do; the rest of the text is for the student, too.
        is_another: whether it is a notebook of another lab.
    """

    def __init__(self, why: str, lab: str = "", advice: str = "", is_another: bool = False) -> None:
        super().__init__(why)
        self.lab, self.advice, self.is_another = lab, advice, is_another


class Labs:
    """The labs of a course, identified by the names of their cells."""

    def __init__(self, course: Course) -> None:
        self.cells = {lab: _cells(course, lab) for lab in course.labs()}

    def named(self, name: str, folders: Sequence[str] = ()) -> list[str]:
        """Return the labs that a file's name and the folders above it name.

        Args:
            name: the file's name.
            folders: the folders between the student's and the file.
        """
        texts = [name, *(f"{folder}.ipynb" for folder in folders)]
        return [lab for lab in self.cells if any(_is_called(text, lab) for text in texts)]

    def find(self, content: bytes, name: str, only: str | None = None,
             folders: Sequence[str] = ()) -> tuple[str, str]:
        """Return the lab that a notebook belongs to, and a note for the instructor.

        The context (--lab, or else the names of the file and its folders) has the last word: cells
        of another lab are a wrong upload, which must not count as an attempt at that lab.

        Args:
            content: the notebook.
            name: its file name.
            only: the only lab to accept.
            folders: the folders between the student's and the file.

        Raises NotOfALab with the reason.
        """
        named = self.named(name, folders)
        meant = only or (named[0] if len(named) == 1 else "")
        if not content.strip():
            raise NotOfALab("it is empty", meant)
        inside = _names(content)
        shares = {lab: share for lab, cells in self.cells.items()
                  if (share := len(inside & cells))}
        most = max(shares.values(), default=0)
        best = [lab for lab, share in shares.items() if share == most]
        if only:
            return _as_meant(only, best, named)
        if misplaced := [lab for lab in named if best and lab not in best]:
            raise NotOfALab(
                f"its name says {misplaced[0]}, but its cells are {' or '.join(best)}'s, so it "
                "looks like the wrong file", meant,
                f"if it is meant for {best[0]}, collect it with --lab {best[0]}")
        candidates = named or best
        if len(candidates) == 1:
            return candidates[0], ""
        if not candidates:
            raise NotOfALab("neither its cells nor its name belong to a lab")
        raise NotOfALab(f"it belongs to {' or '.join(candidates)}: name one with --lab")


def _as_meant(lab: str, best: Sequence[str], named: Sequence[str]) -> tuple[str, str]:
    """Return the lab of --lab and a note. Raises NotOfALab where nothing in the notebook fits it.

    Args:
        lab: the lab that the instructor named.
        best: the labs of which it has most cells.
        named: the labs that its name and its folders name.
    """
    if lab in best:
        other = f"its name says {' or '.join(named)}" * bool(named and lab not in named)
        return lab, other
    if best:
        raise NotOfALab(f"its cells are {' or '.join(best)}'s, not {lab}'s, so it looks like the "
                        "wrong file", lab, is_another=True)
    if lab in named:
        return lab, ""
    raise NotOfALab(f"its name says {' or '.join(named)}, not {lab}" if named
                    else "neither its cells nor its name belong to a lab", lab)


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


def is_untouched(course: Course, lab: str, content: bytes) -> bool:
    """Return whether a notebook has no work in it, as a hub copies it into every home.

    Args:
        course: the course.
        lab: the lab's name.
        content: the notebook.
    """
    own = course.labs_folder(lab)
    released = [course.notebook("release", lab),
                *(folder / "notebooks" / f"{lab}.ipynb" for folder in (own, CHECKOUT) if folder)]
    for path in released:
        # What is much larger was worked on, and may be made to be expensive to read.
        if not path.is_file() or len(content) > 2 * path.stat().st_size:
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            status = path.stat()
            if _digest(path.name, content) == _released_digest(path, status.st_mtime_ns):
                return True
    return False


def _digest(name: str, content: bytes) -> str:
    return shipping.digest(name, shipping.without_worked_links(content))


@functools.lru_cache(maxsize=100)
def _released_digest(path: Path, changed: int) -> str:
    return _digest(path.name, path.read_bytes())
