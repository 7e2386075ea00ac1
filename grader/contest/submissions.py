"""Read submissions in contests/NAME/STUDENT/FILE: once, plain files only, within limits.

As with notebooks, every version is kept in received/, and receipts.jsonl has their times of
receipt.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from grader.collect import store
from grader.course import Course, receipts
from grader.course.names import problem_of_id
from grader.course.reasons import Unusable
from grader.course.receipts import Receipt
from grader.course.submitted import read as read_plain
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labkit.contest.cli import problem_of
from labkit.contest.declaration import Contest

BY_HAND = "found in contests/: when its file was put there (ctime)"


def folder(course: Course, contest: Contest) -> Path:
    """Return the folder that has one folder per student.

    Args:
        course: the course.
        contest: the contest.
    """
    return course.root / "contests" / contest.name


def label(contest: Contest) -> str:
    """Return the label in receipts that stands for a lab's name; no lab's name has a slash."""
    return f"contests/{contest.name}"


def students(course: Course, contest: Contest) -> list[str]:
    """Return the ids of all students who ever submitted anything.

    Args:
        course: the course.
        contest: the contest.
    """
    ids = {name for name in _folders(course, contest) if not problem_of_id(name)}
    return sorted(ids | {student for student, of in receipts.read(course)
                         if of == label(contest)})


def invalid_folders(course: Course, contest: Contest) -> dict[str, str]:
    """Return the reasons for folders whose names cannot be a student's id.

    Args:
        course: the course.
        contest: the contest.
    """
    return {name: f"no student's id: {problem_of_id(name)}" for name in _folders(course, contest)
            if problem_of_id(name) and not name.startswith(".")}


def _folders(course: Course, contest: Contest) -> list[str]:
    here = folder(course, contest)
    return sorted(path.name for path in here.iterdir()) if here.is_dir() else []


def read(course: Course, contest: Contest, student: str) -> bytes | None:
    """Return a student's current file; None when there is no folder for it.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.

    Raises reasons.Unusable for what is not played: a link, a special file, a file that is too large
    or not UTF-8.
    """
    path = folder(course, contest) / student / contest.file
    if not os.path.lexists(path.parent):
        return None
    content = read_plain(path)
    if problem := problem_of(content):
        raise Unusable(f"{contest.file}: {problem}")
    return content


def register(course: Course, contest: Contest, student: str, content: bytes) -> None:
    """Keep the current file as a version; its receipt has the time at which it was put there.

    Students can set a file's modification time (`cp -p` and archives keep it), but not its ctime.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
        content: the file, as `read` returned it.
    """
    digest = store_version(course, contest, student, content)
    if digest not in versions(course, contest, student):
        status = os.stat(folder(course, contest) / student / contest.file, follow_symlinks=False)
        when = datetime.datetime.fromtimestamp(status.st_ctime, datetime.UTC)
        receipts.add(course, Receipt(student, label(contest), digest, when.isoformat(), BY_HAND))


def store_version(course: Course, contest: Contest, student: str, content: bytes) -> str:
    """Store a version unless it already exists, and return its digest.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
        content: the file.
    """
    digest = store.digest_of(content)
    path = _version(course, contest, student, digest)
    if not path.is_file() or path.stat().st_size != len(content):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return digest


def versions(course: Course, contest: Contest, student: str) -> dict[str, datetime.datetime]:
    """Return the time of receipt of each version by digest, in the order of their receipts.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
    """
    first_received: dict[str, datetime.datetime] = {}
    for receipt in receipts.read(course).get((student, label(contest)), []):
        first_received.setdefault(receipt.digest, receipt.time)
    return first_received


def version(course: Course, contest: Contest, student: str, digest: str) -> bytes:
    """Return a stored version.

    Args:
        course: the course.
        contest: the contest.
        student: the student's id.
        digest: the version's SHA-256.

    Raises LabError when it is missing or was changed.
    """
    path = _version(course, contest, student, digest)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}; restore it from a backup") from error
    if store.digest_of(content) != digest:
        raise LabError(f"{path} was changed; restore it from a backup")
    return content


def _version(course: Course, contest: Contest, student: str, digest: str) -> Path:
    return course.root / "received" / student / "contests" / contest.name / f"{digest}.py"
