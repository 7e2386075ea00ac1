"""A result into the gradebook, through nbgrader's API and by its rules. Only the parent does this,
one after the other.

The record is written last. Killed anywhere before, the same result is merged again, to the same
rows: nothing is lost, nothing is there twice.
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

from grader import byhand
from grader.attempt import Attempt
from grader.course import Course
from grader.gradebook import entered
from grader.late import penalise
from grader.records import (
    NOT_ISOLATED,
    Record,
    enrol,
    last,
    now,
    submission_in,
    with_this,
    write,
)
from grader.report import net, received, stamped
from grader.results import Result
from grader.ungraded import leave_ungraded
from grader.written.pending import pending
from labcore.workspace import put_whole

MODE = 0o444  # as nbgrader leaves notebooks in autograded/


class _OneSubmission:
    """What nbgrader's step uses of a gradebook, for one submission in a transaction of ours."""

    def __init__(self, notebook: Any) -> None:
        self.grades = {grade.name: grade for grade in notebook.grades}
        self.comments = {comment.name: comment for comment in notebook.comments}
        self.db = self

    def commit(self) -> None:
        """Ours, at the end."""

    def find_grade(self, cell: str, *_: str) -> Any:
        return self._of(self.grades, cell)

    def find_comment(self, cell: str, *_: str) -> Any:
        return self._of(self.comments, cell)

    @staticmethod
    def _of(found: dict[str, Any], cell: str) -> Any:
        if cell not in found:
            raise MissingEntry(f"the gradebook's lab has no cell {cell}: `lab release` updates it")
        return found[cell]


def merge(course: Course, settings: Config, book: Gradebook, result: Result) -> Record:
    """Enter one result; its record."""
    attempt = result.attempt
    lab, student, digest = attempt.lab, attempt.student, attempt.digest
    if attempt.notebook is None:
        return leave_ungraded(course, lab, student, attempt.reason, book, digest=digest,
                              attempt=result.id, notes=attempt.notes)
    byhand.give_back_extension(course, lab, student, book)
    byhand.set_aside_older(course, lab, student, digest, book)
    try:
        submission = _enter(course, settings, book, attempt)
        entered.write(book, lab, student, digest, result.id)
        aside, of = byhand.give_back(course, lab, student, digest, submission)
        book.db.commit()
    except BaseException:
        book.db.rollback()
        raise
    _put_notebook(course, attempt)
    notes = [*attempt.notes, *([] if attempt.isolated else [NOT_ISOLATED]), *byhand.note(aside)]
    history = with_this(last(course, lab, student), digest, at=now(), state=attempt.state,
                        received=received(course, lab, student),
                        score=net(submission) if attempt.state == "graded" else None)
    record = Record(attempt.state, digest, attempt.reason, notes, now(), aside, of,
                    attempt.lab_digest, result.id, list(attempt.unscored), history)
    write(course, lab, student, record)
    return record


def _enter(course: Course, settings: Config, book: Gradebook, attempt: Attempt) -> Any:
    """Scores, comments and the late penalty, uncommitted; the submission."""
    lab, student = attempt.lab, attempt.student
    enrol(book, student)
    submission = _submission(book, lab, student, stamped(course, lab, student))
    found = next(one for one in submission.notebooks if one.name == lab)
    notebook = nbformat.from_dict(attempt.notebook)
    step = SaveAutoGrades(config=settings)
    step.gradebook = one = _OneSubmission(found)
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
    book.db.flush()
    book.db.refresh(found)  # its score is the sum of what was just entered
    penalise(settings, submission, found, student)
    return submission


def _submission(book: Gradebook, lab: str, student: str, when: datetime.datetime | None) -> Any:
    """Return the gradebook's submission, with its time of receipt uncommitted. A new one is
    committed, since nbgrader's API makes it.

    Args:
        book: the open gradebook.
        lab: name of the lab.
        student: the student's id.
        when: time of receipt.
    """
    try:
        found = book.find_submission(lab, student)
    except MissingEntry:
        return submission_in(book, lab, student, timestamp=when)
    found.timestamp = when and when.astimezone(datetime.UTC).replace(tzinfo=None)
    return found


def _put_notebook(course: Course, attempt: Attempt) -> None:
    """What formgrader shows. Nothing else of a submission goes there; an older page goes."""
    lab, student = attempt.lab, attempt.student
    shutil.rmtree(course.root / "feedback" / student / lab, ignore_errors=True)
    place = course.notebook("autograded", lab, student)
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    put_whole(place, json.dumps(attempt.notebook, indent=1).encode(), MODE)


def given(book: Gradebook, lab: str, student: str) -> dict[str, Any]:
    """What the page for the student says of scores and comments, as plain values."""
    submission = book.find_submission(lab, student)
    found = next(one for one in submission.notebooks if one.name == lab)
    return {"score": found.score, "max_score": found.max_score,
            "late_penalty": found.late_submission_penalty or 0.0,
            "scores": {grade.name: [grade.score, grade.max_score] for grade in found.grades},
            "pending": pending(submission),
            "comments": {one.name: one.comment for one in found.comments if one.comment}}
