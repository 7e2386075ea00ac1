"""Every attempt of a student at a contest: contest-results/NAME/attempts/STUDENT.json.

One attempt is one version of the file; which one counts is worked out from all of them, so a worse
resubmission costs nothing. Each file is written whole or not at all, by the parent process alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from grader.course import Course
from labcore.atomic import put_whole
from labkit.contest.declaration import Contest
from labkit.contest.play import FLOOR, Outcome, points, points_by_group

LARGEST = 50_000_000  # bytes of a student's file


@dataclass(frozen=True)
class Attempt:
    """One version of a student's file, played on the secret cases, or not yet.

    Attributes:
        digest: SHA-256 of the version, hex.
        received: when it came in, ISO 8601, UTC.
        played_at: when it was played, ISO 8601, UTC.
        made_with: secret.digest of then; scores of another one are out of date.
        outcomes: one per case; empty where it could not be played.
        reason: why it could not be played, which is not the student's fault.
    """

    digest: str
    received: str
    played_at: str
    made_with: str
    outcomes: tuple[Outcome, ...] = field(default=(), repr=False)
    reason: str = ""

    @property
    def points(self) -> float:
        return points(self.outcomes)

    @property
    def by_group(self) -> dict[str, float]:
        return points_by_group(self.outcomes)


def results(course: Course, contest: Contest) -> Path:
    """Return the folder of a contest's results; for instructors' eyes only."""
    return course.root / "contest-results" / contest.name


def _file(course: Course, contest: Contest, student: str) -> Path:
    return results(course, contest) / "attempts" / f"{student}.json"


def read(course: Course, contest: Contest, student: str) -> tuple[dict[str, Attempt], str]:
    """Return a student's attempts by digest, and why the current file was refused, if it was.

    A damaged file holds no attempts: all versions are kept in received/, and are played again.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
    """
    return _loaded(_file(course, contest, student)) or ({}, "")


def _loaded(path: Path) -> tuple[dict[str, Attempt], str] | None:
    """None for a file that is not there, or damaged."""
    try:
        return parsed(path.read_bytes()) if path.stat().st_size <= LARGEST else None
    except OSError:
        return None


def parsed(content: bytes) -> tuple[dict[str, Attempt], str] | None:
    """Return the attempts in a file's content, and why the current version was refused; None for
    content that is damaged."""
    try:
        found = json.loads(content)
        attempts = [_attempt(one) for one in found["attempts"]]
        refused = found["refused"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return ({attempt.digest: attempt for attempt in attempts}, refused
            ) if isinstance(refused, str) else None


def _attempt(found: dict) -> Attempt:
    """Raises TypeError and ValueError for what is no attempt."""
    outcomes = tuple(Outcome(**one) for one in found["outcomes"])
    made = Attempt(**found | {"outcomes": outcomes})
    for one in outcomes:
        texts = (one.case, one.group, one.note, one.kind, one.reason, one.hint)
        if not (all(isinstance(text, str) for text in texts)
                and isinstance(one.score, float) and FLOOR <= one.score <= 1
                and math.isfinite(one.score)):
            raise ValueError(one.case)
    texts = (made.digest, made.received, made.played_at, made.made_with, made.reason)
    if not all(isinstance(text, str) for text in texts) or bool(outcomes) == bool(made.reason):
        raise ValueError(made.digest)
    if datetime.fromisoformat(made.received).tzinfo is None:
        raise ValueError(made.received)
    return made


def write(course: Course, contest: Contest, student: str, attempts: dict[str, Attempt],
          refused: str) -> None:
    """Write a student's attempts; a damaged file is kept beside the new one.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
        attempts: by digest.
        refused: why the current file is not played; empty if it is.
    """
    path = _file(course, contest, student)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and _loaded(path) is None:
        path.replace(path.with_name(path.name + ".damaged"))
    content = {"attempts": [asdict(one) for one in attempts.values()], "refused": refused}
    put_whole(path, json.dumps(content, indent=1).encode(), 0o600)


def tidy(course: Course, contest: Contest) -> None:
    """Remove what a killed process left half written. Only while nobody else writes."""
    for unfinished in (results(course, contest) / "attempts").glob(".*.json.*"):
        unfinished.unlink(missing_ok=True)


def best(attempts: Sequence[Attempt], made_with: str) -> Attempt | None:
    """Return the attempt that counts: the most points, then the earliest. None before the first.

    Args:
        attempts: all of a student's.
        made_with: secret.digest of now; those of another one do not count until played again.
    """
    current = [one for one in attempts if one.outcomes and one.made_with == made_with]
    return min(current, key=lambda one: (-one.points, datetime.fromisoformat(one.received),
                                         one.digest), default=None)
