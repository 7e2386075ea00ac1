"""A submission that cannot be graded: what was claimed about an earlier one is taken back."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence

from nbgrader.api import Gradebook, MissingEntry

from grader import byhand
from grader.course import Course
from grader.records import Record, enrol, explain, gradebook, last, now, with_this, write
from grader.report import received


def leave_ungraded(course: Course, lab: str, student: str, reason: str,
                   book: Gradebook | None = None, *, digest: str | None = None, attempt: str = "",
                   notes: Sequence[str] = ()) -> Record:
    """Remove the scores, notebook and feedback that are there. What a person had entered waits in
    the record, which is written first: a kill in between loses nothing.

    `digest` is the notebook's that cannot be graded (None: what is submitted now).
    """
    for step in ("autograded", "feedback"):
        shutil.rmtree(course.root / step / student / lab, ignore_errors=True)
    before, found = last(course, lab, student), {}
    digest = course.digest(lab, student) if digest is None else digest
    with gradebook(course, book) as book:
        enrol(book, student)
        with contextlib.suppress(MissingEntry):
            submission = book.find_submission(lab, student)
            found = byhand.entered(submission)
            if before and before.digest != digest:
                before = byhand.settled(before, submission)
    aside, of = byhand.together(before, found)
    history = with_this(before, digest, at=now(), received=received(course, lab, student),
                        state="ungraded", score=None)
    record = Record("ungraded", digest, reason, [*notes, *byhand.note(aside)], now(), aside, of,
                    attempt=attempt, history=history)
    write(course, lab, student, record)
    with gradebook(course, book) as book, contextlib.suppress(MissingEntry):
        book.remove_submission(lab, student)
    return record


@contextlib.contextmanager
def ungraded_on_error(course: Course, lab: str, student: str) -> Iterator[None]:
    """Around a step of nbgrader: its own commands too leave no earlier score when it fails."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        leave_ungraded(course, lab, student, explain(error))
        raise
