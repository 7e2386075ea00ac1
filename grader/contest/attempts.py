"""All attempts of a student at a contest: contest-results/NAME/attempts/STUDENT.json.

One attempt is one version of the file. The attempt that counts is computed from all of them, so a
worse resubmission costs nothing. Only the parent process writes these files, atomically.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from grader.course import Course
from labcore.atomic import write_atomic
from labkit.contest.declaration import Contest
from labkit.contest.play import FLOOR, CaseResult, points, points_by_group

LARGEST = 50_000_000  # bytes of a student's file


@dataclass(frozen=True)
class ContestAttempt:
    """One version of a student's file, and its outcomes once it has been played on the secret
    cases.

    Attributes:
        digest: SHA-256 of the version, in hex.
        received: time of receipt, ISO 8601, UTC.
        played_at: time of the run, ISO 8601, UTC.
        made_with: secret.digest at that time; scores with another digest are out of date.
        outcomes: one per case; empty if it could not be played.
        reason: why it could not be played, which is not the student's fault.
    """

    digest: str
    received: str
    played_at: str
    made_with: str
    outcomes: tuple[CaseResult, ...] = field(default=(), repr=False)
    reason: str = ""

    @property
    def points(self) -> float:
        return points(self.outcomes)

    @property
    def by_group(self) -> dict[str, float]:
        return points_by_group(self.outcomes)


def results(course: Course, contest: Contest) -> Path:
    """Return the folder of a contest's results, for instructors only.

    Args:
        course: the course.
        contest: the contest.
    """
    return course.root / "contest-results" / contest.name


def _file(course: Course, contest: Contest, student: str) -> Path:
    return results(course, contest) / "attempts" / f"{student}.json"


def read(course: Course, contest: Contest, student: str) -> tuple[dict[str, ContestAttempt], str]:
    """Return a student's attempts by digest, and why the current file was refused, if it was.

    A damaged file holds no attempts: all versions are kept in received/, and are played again.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
    """
    return _loaded(_file(course, contest, student)) or ({}, "")


def _loaded(path: Path) -> tuple[dict[str, ContestAttempt], str] | None:
    """Return the attempts in a file; None for a missing or damaged one."""
    try:
        return parsed(path.read_bytes()) if path.stat().st_size <= LARGEST else None
    except OSError:
        return None


def parsed(content: bytes) -> tuple[dict[str, ContestAttempt], str] | None:
    """Return the attempts in a file's content, and why the current version was refused; None for
    content that is damaged."""
    try:
        data = json.loads(content)
        attempts = [_attempt(one) for one in data["attempts"]]
        refused = data["refused"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return ({attempt.digest: attempt for attempt in attempts}, refused
            ) if isinstance(refused, str) else None


def _attempt(data: dict) -> ContestAttempt:
    """Return one attempt. Raises TypeError or ValueError for anything else."""
    outcomes = tuple(CaseResult(**one) for one in data["outcomes"])
    attempt = ContestAttempt(**data | {"outcomes": outcomes})
    for one in outcomes:
        texts = (one.case, one.group, one.note, one.kind, one.reason, one.hint)
        if not (all(isinstance(text, str) for text in texts)
                and isinstance(one.score, float) and FLOOR <= one.score <= 1
                and math.isfinite(one.score)):
            raise ValueError(one.case)
    texts = (attempt.digest, attempt.received, attempt.played_at, attempt.made_with, attempt.reason)
    if not all(isinstance(text, str) for text in texts) or bool(outcomes) == bool(attempt.reason):
        raise ValueError(attempt.digest)
    if datetime.fromisoformat(attempt.received).tzinfo is None:
        raise ValueError(attempt.received)
    return attempt


def write(course: Course, contest: Contest, student: str, attempts: dict[str, ContestAttempt],
          refused: str) -> None:
    """Write a student's attempts; a damaged file is kept beside the new one.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
        attempts: the student's attempts by digest.
        refused: why the current file is not played; empty if it is.
    """
    path = _file(course, contest, student)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and _loaded(path) is None:
        path.replace(path.with_name(path.name + ".damaged"))
    content = {"attempts": [asdict(one) for one in attempts.values()], "refused": refused}
    write_atomic(path, json.dumps(content, indent=1).encode(), 0o600)


def tidy(course: Course, contest: Contest) -> None:
    """Remove partial files of killed processes. Call it only while nobody else writes.

    Args:
        course: the course.
        contest: the contest.
    """
    for unfinished in (results(course, contest) / "attempts").glob(".*.json.*"):
        unfinished.unlink(missing_ok=True)


def best(attempts: Sequence[ContestAttempt], made_with: str) -> ContestAttempt | None:
    """Return the attempt that counts: the most points, then the earliest. None before the first.

    Args:
        attempts: all attempts of a student.
        made_with: today's secret.digest; attempts with another digest count once they are played
            again.
    """
    current = [one for one in attempts if one.outcomes and one.made_with == made_with]
    return min(current, key=lambda one: (-one.points, datetime.fromisoformat(one.received),
                                         one.digest), default=None)
