"""An instructor's decisions about whole labs: `decisions.jsonl` in the course folder.

A score, or that the student is excused, counts whatever is graded afterwards. Lines are only ever
added, so the file also says who decided what before, and why.
"""

from __future__ import annotations

import datetime
import functools
import getpass
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.course import Course, Submission
from labcore.atomic import put_whole
from labcore.errors import LabError

SCORE, EXTENSION, ASIDE = "score", "extension", "aside"
EXCUSED = "excused"


@dataclass(frozen=True)
class Decision:
    """One line of the file."""

    kind: str  # score | extension | aside
    student: str
    lab: str
    value: float | str | None  # points or "excused"; a due date in ISO 8601; the digest of the
    # submission that is set aside; None: taken back
    why: str
    who: str  # the user who typed the command
    at: str  # UTC

    def __str__(self) -> str:
        what = f"{self.value:g} points" if isinstance(self.value, float) else str(self.value)
        why = f": {self.why}" if self.why else ""
        return f"{what}, by {self.who} on {self.at[:16].replace('T', ' ')} UTC{why}"


def file_of(course: Course) -> Path:
    return course.root / "decisions.jsonl"


def current(course: Course, kind: str) -> dict[tuple[str, str], Decision]:
    """The decisions of one kind that hold, by (lab, student). Raises LabError when a line is
    damaged: a decision is never dropped silently."""
    return {key: one for key, one in last(course, kind).items() if one.value is not None}


def last(course: Course, kind: str) -> dict[tuple[str, str], Decision]:
    """The last decision of one kind by (lab, student), also where it takes an earlier one back."""
    path = file_of(course)
    try:
        status = path.stat()
    except FileNotFoundError:
        return {}
    return {(one.lab, one.student): one for one in _read(path, status.st_mtime_ns, status.st_size)
            if one.kind == kind}


def set_aside(submission: Submission) -> str:
    """Return why a person set aside what is submitted now; empty when nobody did. A new version of
    the submission is graded again."""
    found = current(submission.course, ASIDE).get(submission.key)
    if found is None or found.value != submission.digest:
        return ""
    return f"set aside by {found.who}: {found.why}"


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> list[Decision]:
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(_sound(Decision(**json.loads(line))))
        except (ValueError, TypeError, RecursionError):
            raise LabError(f"{path}, line {number} is damaged: correct it, or restore the file "
                           "from a backup of the course folder") from None
    return found


def _sound(one: Decision) -> Decision:
    """Raise ValueError for a decision that is not valid."""
    texts = (one.kind, one.student, one.lab, one.why, one.who, one.at)
    by_kind = {SCORE: one.value is None or one.value == EXCUSED or _is_number(one.value),
               EXTENSION: one.value is None or isinstance(one.value, str),
               ASIDE: one.value is None or isinstance(one.value, str)}
    if not all(isinstance(text, str) for text in texts) or not by_kind.get(one.kind):
        raise ValueError
    return one


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def add(course: Course, kind: str, students: Sequence[str], lab: str, value: float | str | None,
        why: str) -> None:
    """Write one decision for each student, all of them or none.

    Args:
        course: the course folder.
        kind: SCORE, EXTENSION, or ASIDE.
        students: their ids.
        lab: name of the lab.
        value: points or EXCUSED, a due date in ISO 8601, or a digest; None takes an earlier
            decision back.
        why: the reason, in the instructor's words.
    """
    path = file_of(course)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    before = path.read_bytes() if path.exists() else b""
    lines = [json.dumps(asdict(_sound(Decision(kind, student, lab, value, why, _user(), now))))
             for student in students]
    put_whole(path, before + "".join(line + "\n" for line in lines).encode(), 0o600)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "?"
