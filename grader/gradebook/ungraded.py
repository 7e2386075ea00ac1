"""Mark a submission as ungraded, and withdraw the scores of an earlier version."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence

from nbgrader.api import Gradebook, MissingEntry

from grader.course import Submission, groups
from grader.course.reasons import explain
from grader.course.received import received
from grader.course.record import GradingRecord, now, updated_history
from grader.gradebook import byhand
from grader.gradebook.records import enroll, gradebook


def remove_pages(submission: Submission) -> None:
    """Remove the feedback pages of a submission, its group's included."""
    course, lab, student = submission.course, submission.lab, submission.student
    for one in (student, *groups.others_of(course, lab, student)):
        remove_page(Submission(course, lab, one))


def remove_page(submission: Submission) -> None:
    """Remove the feedback page of one student."""
    shutil.rmtree(submission.page.parent, ignore_errors=True)


def leave_ungraded(submission: Submission, reason: str, book: Gradebook | None = None, *,
                   attempt: str = "", notes: Sequence[str] = ()) -> GradingRecord:
    """Remove the scores, notebook, and feedback of a submission, and return its new record.

    Manual scores wait in the record, which is written first, so that a crash loses nothing.

    Args:
        submission: what cannot be graded.
        reason: why, for the instructor.
        book: the gradebook, if it is open already.
        attempt: id of the result, if there is one.
        notes: further remarks for the instructor.
    """
    before, values = submission.record, {}
    answers = byhand.answers_of(submission)
    shutil.rmtree(submission.notebook("autograded").parent, ignore_errors=True)
    remove_pages(submission)
    with gradebook(submission.course, book) as book:
        enroll(book, submission.student)
        with contextlib.suppress(MissingEntry):
            entry = book.find_submission(*submission.key)
            values = byhand.entered_by_hand(entry)
            before = byhand.archived(before, entry, answers)
            if before and before.digest != submission.digest:
                before = byhand.with_final_score(before, entry)
    aside, of = byhand.merged(before, values)
    history = updated_history(before, submission.digest, at=now(), received=received(submission),
                              state="ungraded", score=None)
    notes = [*notes, *byhand.set_aside_notes(aside)]
    record = GradingRecord("ungraded", submission.digest, reason, notes, now(), aside, of,
                           attempt=attempt, history=history,
                           entered=before.entered if before else {})
    submission.save(record)
    with gradebook(submission.course, book) as book, contextlib.suppress(MissingEntry):
        book.remove_submission(*submission.key)
    return record


@contextlib.contextmanager
def ungraded_on_error(submission: Submission) -> Iterator[None]:
    """Mark the submission as ungraded when the block fails, so that nbgrader's own commands leave
    no earlier score either."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        leave_ungraded(submission, explain(error))
        raise
