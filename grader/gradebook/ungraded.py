"""A submission that cannot be graded: what was claimed about an earlier one is taken back."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence

from nbgrader.api import Gradebook, MissingEntry

from grader.course import Submission
from grader.course.reasons import explain
from grader.course.received import received
from grader.course.record import Record, now, with_this
from grader.gradebook import byhand
from grader.gradebook.records import enrol, gradebook


def leave_ungraded(submission: Submission, reason: str, book: Gradebook | None = None, *,
                   attempt: str = "", notes: Sequence[str] = ()) -> Record:
    """Remove the scores, notebook and feedback that are there; the new record. What a person had
    entered waits in the record, which is written first: a kill in between loses nothing.

    Args:
        submission: what cannot be graded.
        reason: why, for the instructor.
        book: the gradebook, if it is open already.
        attempt: id of the result, if there is one.
        notes: what else the instructor should know.
    """
    for step in ("autograded", "feedback"):
        shutil.rmtree(submission.notebook(step).parent, ignore_errors=True)
    before, found = submission.record, {}
    with gradebook(submission.course, book) as book:
        enrol(book, submission.student)
        with contextlib.suppress(MissingEntry):
            entry = book.find_submission(*submission.key)
            found = byhand.entered(entry)
            if before and before.digest != submission.digest:
                before = byhand.settled(before, entry)
    aside, of = byhand.together(before, found)
    history = with_this(before, submission.digest, at=now(), received=received(submission),
                        state="ungraded", score=None)
    record = Record("ungraded", submission.digest, reason, [*notes, *byhand.note(aside)], now(),
                    aside, of, attempt=attempt, history=history)
    submission.save(record)
    with gradebook(submission.course, book) as book, contextlib.suppress(MissingEntry):
        book.remove_submission(*submission.key)
    return record


@contextlib.contextmanager
def ungraded_on_error(submission: Submission) -> Iterator[None]:
    """Around a step of nbgrader: its own commands too leave no earlier score when it fails."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        leave_ungraded(submission, explain(error))
        raise
