"""What a person entered in formgrader: scores, extra credit, comments, an extension.

It belongs to one submitted notebook. While that one is not graded it waits in the record; it comes
back when the same notebook is graded, and says nothing about a new one.
"""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import replace
from typing import Any

from nbgrader.api import Gradebook, MissingEntry

from grader.course import Course
from grader.records import Record, enrol, gradebook, last, submission_in, with_this, write
from grader.report import net

SET_ASIDE = "scores or comments given by hand were set aside, in attempts/"


def note(aside: dict[str, Any]) -> list[str]:
    """What the table says of that which waits."""
    return [SET_ASIDE] * bool(set(aside) - {"extension"})


def entered(submission: Any) -> dict[str, Any]:
    """Of a submission in the gradebook: by the cell's name, or "comment on" it, or "extension"."""
    found: dict[str, Any] = {}
    for notebook in submission.notebooks:
        for grade in notebook.grades:
            if grade.manual_score is not None or grade.extra_credit:
                found[grade.name] = [grade.manual_score, grade.extra_credit]
        for comment in notebook.comments:
            if comment.manual_comment:
                found[f"comment on {comment.name}"] = comment.manual_comment
    if submission.extension:
        found["extension"] = submission.extension.total_seconds()
    return found


def together(before: Record | None, entered: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What was set aside, now with `entered`; and for which notebook."""
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if any(aside.get(name) != value for name, value in entered.items()):
        new = before.digest if before and (before.state == "graded" or before.unscored) else ""
        of = new if not aside or of == new else ""
    return aside | entered, of


def set_aside_older(course: Course, lab: str, student: str, digest: str,
                    book: Gradebook | None = None) -> None:
    """Before the notebook with `digest` is entered: nbgrader would keep an earlier one's scores."""
    before = last(course, lab, student)
    if before is None or before.digest == digest:
        return
    with gradebook(course, book) as book, contextlib.suppress(MissingEntry):
        submission = book.find_submission(lab, student)
        found = entered(submission)
        found.pop("extension", None)  # it is the student's, not the notebook's
        aside, of = together(before, found)
        after = replace(settled(before, submission), set_aside=aside, set_aside_of=of)
        if after != before:
            write(course, lab, student, after)
        if found:
            put(submission, dict.fromkeys(found))
            book.db.commit()


def set_aside_all(course: Course, lab: str, book: Gradebook) -> None:
    """Before the lab gets other cells: nbgrader refuses them while there are submissions. What was
    graded waits to be graded anew, by the lab's digest in the records."""
    for submission in list(book.find_assignment(lab).submissions):
        student = submission.student.id
        before = last(course, lab, student) or Record("ungraded", "", "not graded yet")
        aside, of = together(before, entered(submission))
        write(course, lab, student,
              replace(settled(before, submission), set_aside=aside, set_aside_of=of))
        book.remove_submission(lab, student)


def settled(before: Record, submission: Any) -> Record:
    """With the score that the notebook before has now, what a person entered included, in the
    history: the gradebook is about to forget it, and a policy may count it. Once alone, since a
    kill leaves the gradebook without those scores."""
    entry = next((one for one in before.history if one.get("digest") == before.digest), {})
    given = {name for name, value in entered(submission).items()
             if isinstance(value, list) and value[0] is not None}
    is_scored = before.state == "graded" or (before.unscored and given.issuperset(before.unscored))
    if not is_scored or not entry or entry.get("settled"):
        return before
    entry = {**entry, "state": "graded", "score": net(submission), "settled": True}
    return replace(before, history=with_this(before, **entry))


def give_back(course: Course, lab: str, student: str, digest: str, submission: Any
              ) -> tuple[dict[str, Any], str]:
    """Enter again what waits for this notebook, uncommitted; what goes on waiting, and for which.
    `give_back_extension` came first: an extension waits no longer, lest it undo a later one."""
    before = last(course, lab, student)
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if aside and of == digest:
        put(submission, aside)
        return {}, ""
    aside = {name: value for name, value in aside.items() if name != "extension"}
    return aside, of if aside else ""


def give_back_extension(course: Course, lab: str, student: str, book: Gradebook | None = None
                        ) -> None:
    """Before grading again: whether a submission is late depends on it."""
    record = last(course, lab, student)
    if record and "extension" in record.set_aside:
        seconds = datetime.timedelta(seconds=record.set_aside["extension"])
        with gradebook(course, book) as book:
            enrol(book, student)
            submission_in(book, lab, student, extension=seconds)


def put(submission: Any, values: dict[str, Any]) -> None:
    """Set, or with None take away, what a person entered. The caller commits."""
    for notebook in submission.notebooks:
        for grade in notebook.grades:
            if grade.name in values:
                grade.manual_score, grade.extra_credit = values[grade.name] or (None, None)
                grade.needs_manual_grade = values[grade.name] is not None  # as nbgrader does
        for comment in notebook.comments:
            name = f"comment on {comment.name}"
            comment.manual_comment = values.get(name, comment.manual_comment)
