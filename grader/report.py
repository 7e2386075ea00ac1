"""grades.csv and the table at the end: every student, every lab, and no score that is not one."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import os
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin
from nbgrader.utils import parse_utc

from grader.collect.receipts import receipt_for
from grader.course import Course
from grader.export.spreadsheet import harmless
from grader.gradebook import extensions
from grader.gradebook.decisions import EXCUSED, SCORE, Decision, current
from grader.gradebook.extensions import Extension, due_of
from grader.gradebook.notices import duration, lateness
from grader.policy import counted
from grader.records import Unusable, gradebook, last, number, state
from grader.written.pending import incomplete, pending
from labcore.workspace import put_whole

WANTS_A_LOOK = "wants a look in formgrader"


@dataclass(frozen=True)
class Row:
    """One student and one lab."""

    student: str
    lab: str
    score: float | None  # None: ungraded
    max_score: float
    state: str
    attempt: int  # of how many submissions that were tried this is the last; 0: none yet
    reason: str
    received: str  # UTC
    graded_at: str  # UTC
    notes: str
    raw_score: float | None = None  # what the checks and a person's scores gave, before penalties
    late_penalty: float | None = None  # points lost for being late
    due: str = ""  # UTC, with an extension
    extension: str = ""  # by how much, and why
    late: str = ""  # by how much, and what that costs
    decision: str = ""  # a score for the whole lab that a person entered, by whom and why


def stamped(course: Course, lab: str, student: str) -> datetime.datetime | None:
    """When it came in, for the gradebook, which late penalties go by: what the receipt of
    `lab collect` says. For a notebook that was put there by hand: its time on this disk, or
    nbgrader's timestamp.txt beside it if that is later. None without a notebook.

    Students can write both, but not a time after you copied the file; so a forged early stamp does
    not help, and none at all neither. Raises Unusable when timestamp.txt is no time.
    """
    path = course.notebook("submitted", lab, student)
    if receipt := receipt_for(course, lab, student, course.digest(lab, student)):
        return receipt.time
    stamp = path.with_name("timestamp.txt")
    if not os.path.isfile(path):
        return None
    if not os.path.isfile(stamp) or stamp.is_symlink():
        return _on_disk(path)
    try:
        with stamp.open("rb") as file:
            text = file.read(100).decode(errors="replace").strip()
    except OSError as error:
        raise Unusable(f"timestamp.txt cannot be read: {error.strerror}") from error
    try:
        when = parse_utc(text).replace(tzinfo=datetime.UTC) if text else None
    except Exception as error:  # dateutil lets all kinds of them out
        raise Unusable(f"timestamp.txt says {text!r}, which is no time: remove it, or write one as "
                       "2026-01-31 12:00:00 UTC") from error
    return max(when, _on_disk(path)) if when else _on_disk(path)


def received(course: Course, lab: str, student: str) -> str:
    """When it came in, UTC, for people: also where nothing but the disk's time is known."""
    path = course.notebook("submitted", lab, student)
    if not os.path.isfile(path):  # also where nobody may look
        return ""
    when = None
    with contextlib.suppress(Unusable):  # which its reason says
        when = stamped(course, lab, student)
    return (when or _on_disk(path)).isoformat(timespec="seconds")


def _on_disk(path: Path) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)


def rows(course: Course, book: Gradebook) -> Iterator[Row]:
    """For all students of the gradebook and of submitted/, all labs of the gradebook."""
    students = sorted({*(student.id for student in book.students), *course.students()})
    labs = sorted((lab.name, lab.max_score, due_of(lab)) for lab in book.assignments)
    decided, more_time = current(course, SCORE), extensions.given(course, book)
    for student in students:
        for lab, most, due in labs:
            verdict, reason = state(course, lab, student, book)
            record, found = last(course, lab, student), None
            if verdict == "graded":
                try:
                    found = book.find_submission(lab, student)
                except MissingEntry:
                    verdict, reason = "ungraded", "not in the gradebook"
                else:
                    reason = _to_look_at(found)
            row = Row(student, lab, None, most, verdict, number(record), reason,
                      received(course, lab, student), record.at if record else "",
                      "; ".join(record.notes) if record else "")
            row = _with_times(row, due, more_time.get((lab, student)))
            decision = decided.get((lab, student))
            row = _with_score(row, found, decision) if found else row
            yield _decided(row, decision)


def _with_times(row: Row, due: datetime.datetime | None, extension: Extension | None) -> Row:
    due = extension.due if extension else due
    text = ""
    if extension:
        text = duration(extension.by.total_seconds()) + f": {extension.why}" * bool(extension.why)
    return replace(row, due=due.isoformat(timespec="seconds") if due else "", extension=text)


def _with_score(row: Row, submission: Any, decision: Decision | None) -> Row:
    return replace(row, score=net(submission), raw_score=submission.score,
                   late_penalty=round(submission.late_submission_penalty or 0.0, 9),
                   late=lateness(submission, decided=decision is not None))


def _decided(row: Row, decision: Decision | None) -> Row:
    """What a person decided about the whole lab takes the place of what was graded."""
    if decision is None:
        return row
    row = replace(row, late_penalty=None, decision=str(decision))
    if decision.value == EXCUSED:
        return replace(row, score=None, raw_score=None, state=EXCUSED, reason=decision.why)
    return replace(row, score=float(decision.value), state="graded", reason="")


def _to_look_at(submission: Any) -> str:
    """Return why a graded submission needs manual review in formgrader; empty if it does not."""
    if not submission.needs_manual_grade:
        return ""
    missing = incomplete(pending(submission))
    return f"{WANTS_A_LOOK}: {missing}" if missing else WANTS_A_LOOK


def net(submission: Any) -> float:
    """A submission's score in the gradebook, less what it lost for being late."""
    return max(0.0, submission.score - (submission.late_submission_penalty or 0.0))


def write_csv(course: Course, book: Gradebook, path: Path, students: list[str] | None = None,
              labs: list[str] | None = None) -> list[Row]:
    """Write `path` whole, or not at all; what was written."""
    chosen = [row for row in counted(course, rows(course, book))
              if (not students or row.student in students) and (not labs or row.lab in labs)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([field.name for field in fields(Row)])
    table.writerows([harmless(value) for value in astuple(row)] for row in chosen)
    put_whole(path, text.getvalue().encode(errors="backslashreplace"))
    return chosen


def save(course: Course) -> list[Row]:
    with gradebook(course) as book:
        return write_csv(course, book, course.root / "grades.csv")


class GradesCsv(ExportPlugin):
    """What `nbgrader export` writes: ungraded is no 0 there either."""

    def export(self, gradebook: Gradebook) -> None:
        course = Course(Path(self.parent.coursedir.root))
        path = Path(self.to or "grades.csv")
        write_csv(course, gradebook, path.absolute(), self.student, self.assignment)
        self.log.info("Exported grades to %s", path)
