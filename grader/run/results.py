"""Attempts as files, results/STUDENT/LAB.json. Workers write them atomically, and only the parent
enters them into the gradebook."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from grader.course import Course, Submission
from grader.run.attempt import LARGEST, Attempt, DamagedAttempt
from labcore.atomic import write_atomic

FOLDER = "results"
MOST_TRIES = 2  # a busy machine may be why the first one ran out of time


@dataclass(frozen=True)
class Result:
    """An attempt with a unique id and the digest of its settings.

    Attributes:
        settings: digest of the limits that applied.
        tries: gradings in a row that ended like this one.
    """

    id: str
    settings: str
    attempt: Attempt
    tries: int = 1

    @property
    def is_final(self) -> bool:
        """Return whether grading the same submission again would fail in the same way."""
        return self.attempt.own_doing and self.tries >= MOST_TRIES


def path(submission: Submission) -> Path:
    return submission.course.root / FOLDER / submission.student / f"{submission.lab}.json"


def write(course: Course, settings: str, attempt: Attempt) -> Result:
    """Write the result for the parent: a header line, then the attempt.

    Only the owner may read the file, because it has hidden tests in it.

    Args:
        course: the course.
        settings: digest of the limits that applied.
        attempt: the attempt.
    """
    result = Result(secrets.token_hex(16), settings, attempt, _tries(course, settings, attempt))
    target = path(Submission(course, attempt.lab, attempt.student))
    target.parent.mkdir(parents=True, exist_ok=True)
    first = json.dumps({"id": result.id, "settings": settings, "tries": result.tries}).encode()
    write_atomic(target, first + b"\n" + attempt.dumps(), 0o600)
    return result


def _tries(course: Course, settings: str, attempt: Attempt) -> int:
    """Return 1, or one more than the result before it that ended in the same way.

    Args:
        course: the course.
        settings: digest of the limits that applied.
        attempt: the attempt.
    """
    before = None
    if attempt.own_doing:
        before = read(Submission(course, attempt.lab, attempt.student))
    same = before is not None and before.attempt.own_doing and (
        before.settings, before.attempt.digest, before.attempt.lab_digest) == (
        settings, attempt.digest, attempt.lab_digest)
    return before.tries + 1 if same else 1


def read(submission: Submission) -> Result | None:
    """Return the submission's result; None if there is none or the file is damaged."""
    target = path(submission)
    try:
        if target.stat().st_size > LARGEST:
            return None
        first, _, rest = target.read_bytes().partition(b"\n")
        result = Result(**json.loads(first), attempt=Attempt.loads(rest))
    except (OSError, ValueError, TypeError, RecursionError, DamagedAttempt):
        return None
    named = (isinstance(result.id, str) and isinstance(result.settings, str)
             and type(result.tries) is int)
    owner = (result.attempt.lab, result.attempt.student)
    return result if named and owner == submission.key else None


def tidy(course: Course) -> None:
    """Remove partial files left by killed processes. Call it only while nothing is being graded."""
    for folder in (FOLDER, "attempts"):
        for unfinished in (course.root / folder).glob("*/.*.json.*"):
            unfinished.unlink(missing_ok=True)
