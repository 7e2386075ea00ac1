"""A due date for one student: nbgrader's extension in the gradebook, and why it was given."""

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
    """More time for one student."""

    lab: str
    student: str
    by: datetime.timedelta
    due: datetime.datetime | None  # UTC; None: the lab has no due date
    why: str


def due_of(assignment: Any) -> datetime.datetime | None:
    """A lab's due date, with its zone; the gradebook has it in UTC without one."""
    return assignment.duedate and assignment.duedate.replace(tzinfo=datetime.UTC)


def given(course: Course, book: Gradebook) -> dict[Key, Extension]:
    """All extensions, also those that wait in attempts/ while a submission is ungraded."""
    due = {lab.name: due_of(lab) for lab in book.assignments}
    found: dict[Key, datetime.timedelta] = {}
    for student in {*(student.id for student in book.students), *course.students()}:
        for lab in due:
            record = Submission(course, lab, student).record
            if record and record.set_aside.get("extension"):
                found[lab, student] = datetime.timedelta(seconds=record.set_aside["extension"])
    for one in book.db.query(SubmittedAssignment).filter(
            SubmittedAssignment.extension.is_not(None)):
        if one.extension:
            found[one.assignment.name, one.student_id] = one.extension
    why = decisions.current(course, decisions.EXTENSION)
    return {key: Extension(*key, by, due[key[0]] + by if due[key[0]] else None, _why(why.get(key)))
            for key, by in sorted(found.items()) if key[0] in due}


def _why(decision: decisions.Decision | None) -> str:
    return decision.why if decision else ""


def give_again(course: Course, book: Gradebook, since: datetime.datetime) -> None:
    """Into a restored gradebook: the extensions that `lab extend` gave or took back `since`."""
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
        raise LabError(f"{lab} has no due date yet, so nobody needs more time: set it first with "
                       f"`lab release {lab} --due \"2026-01-31 23:59 UTC\"`")
    if due is not None and due <= usual:
        raise LabError(f"{due:%Y-%m-%d %H:%M} UTC is no extension: {lab} is due "
                       f"{usual:%Y-%m-%d %H:%M} UTC; give a later time")
    for student in students:
        records.enrol(book, student)
        submission = Submission(course, lab, student)
        records.entry_of(submission, book, extension=due - usual if due else None)
        record = submission.record
        if record and "extension" in record.set_aside:  # it would undo this one
            aside = {name: value for name, value in record.set_aside.items() if name != "extension"}
            submission.save(replace(record, set_aside=aside))
