"""Enter one result into the gradebook through nbgrader's API. Only the parent process does this.

The record is written last. If the process is killed before that, merging the same result again
updates the same rows, so nothing is lost and nothing is duplicated.
"""

from __future__ import annotations

import datetime
import json
import shutil
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.preprocessors import SaveAutoGrades
from traitlets.config import Config

from grader.course import Course, Submission
from grader.course.received import receipt_time, received
from grader.course.record import GradingRecord, now, updated_history
from grader.gradebook import byhand, entered
from grader.gradebook.late import penalize
from grader.gradebook.pending import pending
from grader.gradebook.records import NOT_ISOLATED, enroll, entry_of, net_score
from grader.gradebook.ungraded import leave_ungraded, remove_pages
from grader.run.attempt import Attempt
from grader.run.results import Result
from labcore.atomic import write_atomic

MODE = 0o444  # as nbgrader leaves notebooks in autograded/


class _SubmissionGradebook:
    """The part of a gradebook that nbgrader's step uses, for one submission in our transaction."""

    def __init__(self, notebook: Any) -> None:
        self.grades = {grade.name: grade for grade in notebook.grades}
        self.comments = {comment.name: comment for comment in notebook.comments}
        self.db = self

    def commit(self) -> None:
        """Do nothing: `merge` commits at the end."""

    def find_grade(self, cell: str, *_: str) -> Any:
        return self._of(self.grades, cell)

    def find_comment(self, cell: str, *_: str) -> Any:
        return self._of(self.comments, cell)

    @staticmethod
    def _of(entries: dict[str, Any], cell: str) -> Any:
        if cell not in entries:
            raise MissingEntry(f"the gradebook's lab has no cell {cell}: `lab release` updates it")
        return entries[cell]


def merge(course: Course, settings: Config, book: Gradebook, result: Result) -> GradingRecord:
    """Enter one result and return its record.

    Args:
        course: the course.
        settings: the course's configuration.
        book: the gradebook.
        result: the result.
    """
    attempt = result.attempt
    submission = Submission(course, attempt.lab, attempt.student, attempt.digest)
    if attempt.notebook is None:
        return leave_ungraded(submission, attempt.reason, book, attempt=result.id,
                              notes=attempt.notes)
    byhand.reinstate_extension(submission, book)
    byhand.set_aside_older(submission, book)
    try:
        entry = _enter(submission, settings, book, attempt)
        entered.write(submission, book, result.id)
        aside, of, kept = byhand.reinstate(submission, entry, attempt.notebook)
        _penalize(submission, settings, book, entry)
        book.db.commit()
    except BaseException:
        book.db.rollback()
        raise
    _write_notebook(submission, attempt)
    notes = [*attempt.notes, *([] if attempt.isolated else [NOT_ISOLATED]),
             *byhand.set_aside_notes(aside, kept)]
    history = updated_history(submission.record, submission.digest, at=now(), state=attempt.state,
                              received=received(submission),
                              score=net_score(entry) if attempt.state == "graded" else None)
    record = GradingRecord(attempt.state, submission.digest, attempt.reason, notes, now(), aside,
                           of, attempt.lab_digest, result.id, list(attempt.unscored), history,
                           submission.record.entered if submission.record else {})
    submission.save(record)
    return record


def _enter(submission: Submission, settings: Config, book: Gradebook, attempt: Attempt) -> Any:
    """Set scores and comments without a commit; return the gradebook's entry."""
    lab, student = submission.key
    enroll(book, student)
    entry = _entry(submission, book)
    notebook_entry = next(one for one in entry.notebooks if one.name == lab)
    notebook = nbformat.from_dict(attempt.notebook)
    step = SaveAutoGrades(config=settings)
    step.gradebook = one = _SubmissionGradebook(notebook_entry)
    step.notebook_id, step.assignment_id, step.student_id = lab, lab, student
    for index, cell in enumerate(notebook.cells):
        step.preprocess_cell(cell, {}, index)
    for name, grade in one.grades.items():
        if name in attempt.scores:
            grade.auto_score = min(float(attempt.scores[name]), float(grade.max_score))
            grade.needs_manual_grade = grade.manual_score is not None
        if name in attempt.unscored:  # a part may have points all the same
            grade.auto_score = grade.auto_score if name in attempt.scores else None
            grade.needs_manual_grade = True
    return entry


def _penalize(submission: Submission, settings: Config, book: Gradebook, entry: Any) -> None:
    """Set the late penalty, uncommitted, once all scores are entered, those by hand included."""
    notebook_entry = next(one for one in entry.notebooks if one.name == submission.lab)
    book.db.flush()
    book.db.refresh(notebook_entry)  # its score is the sum of what was just entered
    penalize(settings, entry, notebook_entry, submission.student)


def _entry(submission: Submission, book: Gradebook) -> Any:
    """Return the gradebook's entry, with its time of receipt uncommitted.

    nbgrader's API commits a new entry.
    """
    when = receipt_time(submission)
    try:
        entry = book.find_submission(*submission.key)
    except MissingEntry:
        return entry_of(submission, book, timestamp=when)
    entry.timestamp = when and when.astimezone(datetime.UTC).replace(tzinfo=None)
    return entry


def _write_notebook(submission: Submission, attempt: Attempt) -> None:
    """Write the notebook that formgrader shows, and delete everything else there and the old page.
    """
    remove_pages(submission)
    path = submission.notebook("autograded")
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    write_atomic(path, json.dumps(attempt.notebook, indent=1).encode(), MODE)


def feedback_values(submission: Submission, book: Gradebook) -> dict[str, Any]:
    """Return the scores and comments for the student's page, as plain values.

    Args:
        submission: the submission.
        book: the gradebook.
    """
    entry = book.find_submission(*submission.key)
    notebook = next(one for one in entry.notebooks if one.name == submission.lab)
    return {"score": notebook.score, "max_score": notebook.max_score,
            "late_penalty": notebook.late_submission_penalty or 0.0,
            "scores": {grade.name: [grade.score, grade.max_score] for grade in notebook.grades},
            "pending": pending(entry),
            "comments": {one.name: one.comment for one in notebook.comments if one.comment}}
