"""Extensions: a later due date for one student, and the reason for it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment

from grader.course import Course, Submission
from grader.gradebook import decisions, records
from labcore.errors import LabError

Key = tuple[str, str]  # (lab, student)


@dataclass(frozen=True)
class Extension:
    """An extension for one student.

    Attributes:
        by: the additional time.
        due: UTC; None if the lab has no due date.
        why: the reason.
    """

    lab: str
    student: str
    by: datetime.timedelta
    due: datetime.datetime | None
    why: str


def due_of(assignment: Any) -> datetime.datetime | None:
    """Return a lab's due date with its time zone; the gradebook stores it as naive UTC."""
    return assignment.duedate and assignment.duedate.replace(tzinfo=datetime.UTC)


def all_extensions(course: Course, book: Gradebook) -> dict[Key, Extension]:
    """Return all extensions, including those of ungraded submissions in attempts/.

    Args:
        course: the course.
        book: the gradebook.
    """
    due = {lab.name: due_of(lab) for lab in book.assignments}
    extensions: dict[Key, datetime.timedelta] = {}
    for student in {*(student.id for student in book.students), *course.students()}:
        for lab in due:
            record = Submission(course, lab, student).record
            if record and record.set_aside.get("extension"):
                extensions[lab, student] = datetime.timedelta(seconds=record.set_aside["extension"])
    for one in book.db.query(SubmittedAssignment).filter(
            SubmittedAssignment.extension.is_not(None)):
        if one.extension:
            extensions[one.assignment.name, one.student_id] = one.extension
    why = decisions.current(course, decisions.EXTENSION)
    return {key: Extension(*key, by, due[key[0]] + by if due[key[0]] else None, _why(why.get(key)))
            for key, by in sorted(extensions.items()) if key[0] in due}


def _why(decision: decisions.Decision | None) -> str:
    return decision.why if decision else ""


def reapply(course: Course, book: Gradebook, since: datetime.datetime) -> None:
    """Apply recent decisions about extensions to a restored gradebook.

    Args:
        course: the course.
        book: the restored gradebook.
        since: the time of the restored copy.
    """
    for (lab, student), one in decisions.last(course, decisions.EXTENSION).items():
        if datetime.datetime.fromisoformat(one.at) < since.replace(microsecond=0):
            continue
        due = datetime.datetime.fromisoformat(one.value) if one.value else None
        with contextlib.suppress(LabError, MissingEntry):  # the lab or its due date is gone
            extend(course, book, [student], lab, due)


def extend(course: Course, book: Gradebook, students: Sequence[str], lab: str,
           due: datetime.datetime | None) -> None:
    """Give students a due date of their own; None takes the extension back. Raises LabError.

    Args:
        course: the course folder.
        book: the open gradebook.
        students: their ids.
        lab: name of the lab.
        due: the new due date, with its zone.
    """
    usual = next((due_of(one) for one in book.assignments if one.name == lab), None)
    if due is not None and usual is None:
        raise LabError(f"{lab} has no due date yet, so no extension is needed: set it first with "
                       f"`lab release {lab} --due \"2026-01-31 23:59 UTC\"`")
    if due is not None and due <= usual:
        raise LabError(f"{due:%Y-%m-%d %H:%M} UTC is not an extension: {lab} is due "
                       f"{usual:%Y-%m-%d %H:%M} UTC; give a later time")
    for student in students:
        records.enroll(book, student)
        submission = Submission(course, lab, student)
        records.entry_of(submission, book, extension=due - usual if due else None)
        record = submission.record
        if record and "extension" in record.set_aside:  # it would undo this one
            aside = {name: value for name, value in record.set_aside.items() if name != "extension"}
            submission.save(replace(record, set_aside=aside))
