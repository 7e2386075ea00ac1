"""Determine whether a submission is graded, from its record and the gradebook.

Scores that count are in the gradebook only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from sqlalchemy.exc import OperationalError
from traitlets.config import Config

from grader.course import Course, Submission
from grader.course.reasons import Unusable
from grader.gradebook.decisions import set_aside
from grader.gradebook.faults import explained
from grader.gradebook.mark import sqlite_file
from labcore.errors import LabError

NOT_ISOLATED = "graded without isolation"
NOTHING_SUBMITTED = "nothing submitted"


def submission_of(step: Any, resources: dict[str, Any]) -> Submission:
    """Return the submission that a step of nbgrader processes.

    Args:
        step: the step.
        resources: nbgrader's.
    """
    return Submission(Course(Path(step.parent.parent.coursedir.root)),
                      resources["nbgrader"]["assignment"], resources["nbgrader"]["student"])


def database_url(settings: Config, course: Course) -> str:
    """Return the URL of nbgrader's gradebook.

    Args:
        settings: the course's configuration.
        course: the course.
    """
    return settings.CourseDirectory.get("db_url", f"sqlite:///{course.root / 'gradebook.db'}")


def gradebook_file(course: Course) -> Path | None:
    """Return the gradebook's file; None if it is in a database server."""
    return sqlite_file(database_url(course.settings(), course))


@contextlib.contextmanager
def gradebook(course: Course, book: Gradebook | None = None) -> Iterator[Gradebook]:
    """Open the course's gradebook, or yield `book` if it is already open, and leave it open.

    Args:
        course: the course.
        book: the gradebook, if it is open.

    Raises LabError when it is lost, locked, or cannot be written.
    """
    if book is not None:
        yield book
        return
    url = database_url(course.settings(), course)
    with explained(sqlite_file(url) or Path(url.partition(":")[0])), Gradebook(url) as opened:
        yield opened


def state(submission: Submission, book: Gradebook | None = None) -> tuple[str, str]:
    """Return ("graded", "") or ("ungraded", reason).

    Args:
        submission: the submission.
        book: the gradebook, if it is open.
    """
    digest, record = submission.digest, submission.record
    if why := set_aside(submission):
        return "ungraded", why
    if (record and record.state == "ungraded" and record.digest == digest
            and not _scored_by_hand(submission, book)):
        return "ungraded", record.reason
    if not submission.exists:
        return "ungraded", NOTHING_SUBMITTED
    if record is None or not submission.notebook("autograded").exists():
        return "ungraded", "not graded yet"
    if record.digest != digest:
        return "ungraded", "submitted again since it was graded"
    if record.lab != submission.course.digest_of_lab(submission.lab):
        return "ungraded", "the lab was changed since it was graded"
    return "graded", ""


def is_entered(submission: Submission, book: Gradebook) -> bool:
    """Return whether the gradebook has the submission: nbgrader's commands may have removed the
    student.

    Args:
        submission: the submission.
        book: the gradebook.
    """
    with contextlib.suppress(MissingEntry):
        return book.find_submission(*submission.key) is not None
    return False


def _scored_by_hand(submission: Submission, book: Gradebook | None) -> bool:
    """Return whether a person scored every check that could not be graded.

    Args:
        submission: the submission.
        book: the gradebook, if it is open.
    """
    unscored = submission.record.unscored
    if not unscored:
        return False
    with gradebook(submission.course, book) as book:
        try:
            entry = book.find_submission(*submission.key)
        except MissingEntry:
            return False
        given = {grade.name for notebook in entry.notebooks for grade in notebook.grades
                 if grade.manual_score is not None}
    return given.issuperset(unscored)


def is_grader_fault(error: BaseException) -> bool:
    """Return whether the machine or the course is at fault, rather than one submission."""
    return isinstance(error, OSError | LabError | OperationalError) and not isinstance(
        error, Unusable)


def entry_of(submission: Submission, book: Gradebook, **fields: Any) -> Any:
    """Return the gradebook's entry of a submission with these fields; create it if necessary.

    Args:
        submission: the submission.
        book: the gradebook.
        **fields: the entry's fields.
    """
    with book.db.no_autoflush:  # nbgrader looks at the lab's notebooks before it adds a new one
        return book.update_or_create_submission(*submission.key, **fields)


def enroll(book: Gradebook, student: str) -> None:
    """Add a student to the gradebook with the id as name, or formgrader would show "None, None".

    Args:
        book: the gradebook.
        student: the student's id.
    """
    with contextlib.suppress(MissingEntry):
        known = book.find_student(student)
        if known.last_name or known.first_name:
            return
    book.update_or_create_student(student, last_name=student, first_name="")


def net_score(submission: Any) -> float:
    """Return a submission's score in the gradebook after its late penalty."""
    return max(0.0, submission.score - (submission.late_submission_penalty or 0.0))
