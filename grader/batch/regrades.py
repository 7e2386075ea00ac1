"""A regrade of a whole lab that continues after it was killed: regrades/LAB.json while it runs.

The file has the id of each submission's result from before. Whoever has another one by now was
graded since.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.course import Course, Submission
from grader.run import results
from labcore.atomic import write_atomic
from labcore.workspace import CHECKOUT


@dataclass(frozen=True)
class Regrade:
    """A regrade that has begun.

    Attributes:
        began: UTC, ISO 8601.
        version: of the lab, the limits, and the course's programs. With others, an unfinished
            regrade is worth nothing.
        before: the id of each student's result when it began.
    """

    began: str
    version: str
    before: dict[str, str]

    def is_to_do(self, submission: Submission) -> bool:
        """Return whether a submission has not been graded since the regrade began."""
        return self.before.get(submission.student, "") == result_id(submission)


def result_id(submission: Submission) -> str:
    result = results.read(submission)
    return result.id if result else ""


def file_of(course: Course, lab: str) -> Path:
    return course.root / "regrades" / f"{lab}.json"


def begin(course: Course, lab: str, students: Sequence[str], settings: str, from_start: bool
          ) -> tuple[Regrade, bool]:
    """Return the unfinished regrade of a lab, or a new one, and whether it had begun before. Call
    it while the course is locked.

    Args:
        course: the course.
        lab: the lab's name.
        students: everybody who submitted it.
        settings: digest of the limits.
        from_start: whether to begin again in any case.
    """
    version = hashlib.sha256(f"{course.digest_of_lab(lab)} {settings} {_programs()}".encode()
                             ).hexdigest()
    known = _read(file_of(course, lab))
    if known and known.version == version and not from_start:
        return known, True
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    new = Regrade(now, version, {student: result_id(Submission(course, lab, student))
                                 for student in students})
    path = file_of(course, lab)
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, json.dumps(asdict(new)).encode())
    return new, False


def end(course: Course, lab: str) -> None:
    file_of(course, lab).unlink(missing_ok=True)


def _read(path: Path) -> Regrade | None:
    """Return the regrade in a file; None if there is none or the file is damaged."""
    try:
        one = Regrade(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    sound = isinstance(one.version, str) and isinstance(one.began, str) and isinstance(
        one.before, dict)
    return one if sound else None


def _programs() -> str:
    """Return a digest of the course's programs, which changes with every update."""
    total = hashlib.sha256()
    for folder in ("code", "grader"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            status = path.stat()
            total.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return total.hexdigest()
