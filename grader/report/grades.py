"""grades.csv and the table at the end: every student and every lab; ungraded ones have no score."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin

from grader.course import Course, Submission, groups, unreadable
from grader.course.received import received
from grader.course.record import GradingRecord, attempt_number
from grader.course.spreadsheet import harmless
from grader.course.unreadable import UnreadableFile
from grader.gradebook import extensions
from grader.gradebook.byhand import set_aside_notes
from grader.gradebook.decisions import EXCUSED, SCORE, Decision, current, dropped
from grader.gradebook.extensions import Extension, due_of
from grader.gradebook.notices import duration, lateness
from grader.gradebook.pending import incomplete, pending
from grader.gradebook.records import gradebook, net_score, state
from grader.report.policy import counted
from labcore.atomic import write_atomic

NEEDS_REVIEW = "needs review in formgrader"


@dataclass(frozen=True)
class GradeRow:
    """One student and one lab.

    Attributes:
        score: None if ungraded.
        attempt: the number of the last graded submission; 0 before the first.
        received, graded_at, due: UTC; `due` includes an extension.
        raw_score: the score from checks and manual grading, before penalties.
        late_penalty: points lost for being late.
        extension: the additional time, and the reason.
        late: how late it was, and what that costs.
        decision: a manual score for the whole lab, its author, and the reason.
        group: the student's group, whose one submission the row is about.
    """

    student: str
    lab: str
    score: float | None
    max_score: float
    state: str
    attempt: int
    reason: str
    received: str  # UTC
    graded_at: str  # UTC
    notes: str
    raw_score: float | None = None
    late_penalty: float | None = None
    due: str = ""  # UTC, with an extension
    extension: str = ""
    late: str = ""
    decision: str = ""
    group: str = ""


def rows(course: Course, book: Gradebook) -> Iterator[GradeRow]:
    """Yield a row for every student of the gradebook or submitted/ who has not left the course, and
    every lab of the gradebook.

    Args:
        course: the course.
        book: the gradebook.
    """
    gone = dropped(course)
    students = sorted({*(student.id for student in book.students), *course.students()} - set(gone))
    labs = sorted((lab.name, lab.max_score, due_of(lab)) for lab in book.assignments)
    decided, more_time = current(course, SCORE), extensions.all_extensions(course, book)
    unread = unreadable.newest(course)
    for student in students:
        for lab, most, due in labs:
            group = groups.group_of(course, lab, student)
            owner = group.owner if group else student
            submission = Submission(course, lab, owner)
            verdict, reason = state(submission, book)
            record, entry = submission.record, None
            if verdict == "graded":
                try:
                    entry = book.find_submission(lab, owner)
                except MissingEntry:
                    verdict, reason = "ungraded", "not in the gradebook"
                else:
                    reason = _to_look_at(entry, record)
            row = GradeRow(student, lab, None, most, verdict, attempt_number(record), reason,
                           received(submission), record.at if record else "",
                           "; ".join(record.notes) if record else "")
            row = _with_times(row, due, more_time.get((lab, owner)))
            row = _with_unreadable(row, unread.get((lab, owner)))
            row = replace(row, group=group.name) if group else row
            if owner != student and course.submitted(lab, student):
                row = replace(row, notes="; ".join(filter(None, [row.notes, (
                    f"submitted/{student} does not count: {owner} has the group's submission")])))
            decision = decided.get((lab, student))
            row = _with_score(row, entry, decision) if entry else row
            yield _decided(row, decision)


def _with_unreadable(row: GradeRow, one: UnreadableFile | None) -> GradeRow:
    """Return the row with what came in and could not be read: as its reason if nothing else came
    in, as a note if it came after what did.

    Args:
        row: the row.
        one: the student's newest unreadable file.
    """
    if one is None:
        return row
    if not row.received:
        received = datetime.datetime.fromisoformat(one.when).isoformat(timespec="seconds")
        return replace(row, received=received, reason=str(one))
    if datetime.datetime.fromisoformat(one.when) <= datetime.datetime.fromisoformat(row.received):
        return row
    return replace(row, notes="; ".join(filter(None, [row.notes, f"later {one}"])))


def _with_times(row: GradeRow, due: datetime.datetime | None,
                extension: Extension | None) -> GradeRow:
    due = extension.due if extension else due
    text = ""
    if extension:
        text = duration(extension.by.total_seconds()) + f": {extension.why}" * bool(extension.why)
    return replace(row, due=due.isoformat(timespec="seconds") if due else "", extension=text)


def _with_score(row: GradeRow, submission: Any, decision: Decision | None) -> GradeRow:
    return replace(row, score=net_score(submission), raw_score=submission.score,
                   late_penalty=round(submission.late_submission_penalty or 0.0, 9),
                   late=lateness(submission, decided=decision is not None))


def _decided(row: GradeRow, decision: Decision | None) -> GradeRow:
    """Return the row with a person's decision about the whole lab in place of its score.

    Args:
        row: the row.
        decision: the decision, if there is one.
    """
    if decision is None:
        return row
    row = replace(row, late_penalty=None, decision=str(decision))
    if decision.value == EXCUSED:
        return replace(row, score=None, raw_score=None, state=EXCUSED, reason=decision.why)
    return replace(row, score=float(decision.value), state="graded", reason="")


def _to_look_at(submission: Any, record: GradingRecord | None) -> str:
    """Return why a graded submission needs manual review in formgrader; empty if it does not.

    Args:
        submission: the submission in the gradebook.
        record: its record.
    """
    notes = set_aside_notes(record.set_aside) if record else []
    if not submission.needs_manual_grade and not notes:
        return ""
    why = "; ".join(filter(None, [incomplete(pending(submission)), *notes]))
    return f"{NEEDS_REVIEW}: {why}" if why else NEEDS_REVIEW


def write_csv(course: Course, book: Gradebook, path: Path, students: list[str] | None = None,
              labs: list[str] | None = None) -> list[GradeRow]:
    """Write the grades atomically, and return the rows that were written.

    Args:
        course: the course.
        book: the gradebook.
        path: the file.
        students: only these; by default all.
        labs: only these; by default all.
    """
    chosen = [row for row in counted(course, rows(course, book))
              if (not students or row.student in students) and (not labs or row.lab in labs)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([field.name for field in fields(GradeRow)])
    table.writerows([harmless(value) for value in astuple(row)] for row in chosen)
    write_atomic(path, text.getvalue().encode(errors="backslashreplace"))
    return chosen


def save(course: Course) -> list[GradeRow]:
    """Write grades.csv. Commands that save at the same time take turns, so the last one counts."""
    with course.entering(), gradebook(course) as book:
        return write_csv(course, book, course.root / "grades.csv")


class GradesCsv(ExportPlugin):
    """The plugin of `nbgrader export`: it does not write ungraded as 0 either."""

    def export(self, gradebook: Gradebook) -> None:
        course = Course(Path(self.parent.coursedir.root))
        path = Path(self.to or "grades.csv")
        write_csv(course, gradebook, path.absolute(), self.student, self.assignment)
        self.log.info("Exported grades to %s", path)
