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

from grader.course import Course, Submission
from grader.course.record import Record, with_this
from grader.gradebook.records import enrol, entry_of, gradebook, net

SET_ASIDE = "scores or comments given by hand were set aside, in attempts/"


def note(aside: dict[str, Any]) -> list[str]:
    """What the table says of that which waits."""
    return [SET_ASIDE] * bool(set(aside) - {"extension"})


def entered(entry: Any) -> dict[str, Any]:
    """Of an entry in the gradebook: by the cell's name, or "comment on" it, or "extension"."""
    found: dict[str, Any] = {}
    for notebook in entry.notebooks:
        for grade in notebook.grades:
            if grade.manual_score is not None or grade.extra_credit:
                found[grade.name] = [grade.manual_score, grade.extra_credit]
        for comment in notebook.comments:
            if comment.manual_comment:
                found[f"comment on {comment.name}"] = comment.manual_comment
    if entry.extension:
        found["extension"] = entry.extension.total_seconds()
    return found


def together(before: Record | None, entered: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What was set aside, now with `entered`; and for which notebook."""
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if any(aside.get(name) != value for name, value in entered.items()):
        new = before.digest if before and (before.state == "graded" or before.unscored) else ""
        of = new if not aside or of == new else ""
    return aside | entered, of


def set_aside_older(submission: Submission, book: Gradebook | None = None) -> None:
    """Before this version is entered: nbgrader would keep an earlier one's scores."""
    before = submission.record
    if before is None or before.digest == submission.digest:
        return
    with gradebook(submission.course, book) as book, contextlib.suppress(MissingEntry):
        entry = book.find_submission(*submission.key)
        found = entered(entry)
        found.pop("extension", None)  # it is the student's, not the notebook's
        aside, of = together(before, found)
        after = replace(settled(before, entry), set_aside=aside, set_aside_of=of)
        if after != before:
            submission.save(after)
        if found:
            put(entry, dict.fromkeys(found))
            book.db.commit()


def set_aside_all(course: Course, lab: str, book: Gradebook) -> None:
    """Before the lab gets other cells: nbgrader refuses them while there are submissions. What was
    graded waits to be graded anew, by the lab's digest in the records."""
    for entry in list(book.find_assignment(lab).submissions):
        submission = Submission(course, lab, entry.student.id)
        before = submission.record or Record("ungraded", "", "not graded yet")
        aside, of = together(before, entered(entry))
        submission.save(replace(settled(before, entry), set_aside=aside, set_aside_of=of))
        book.remove_submission(*submission.key)


def settled(before: Record, entry: Any) -> Record:
    """With the score that the notebook before has now, what a person entered included, in the
    history: the gradebook is about to forget it, and a policy may count it. Once alone, since a
    kill leaves the gradebook without those scores."""
    known = next((one for one in before.history if one.get("digest") == before.digest), {})
    given = {name for name, value in entered(entry).items()
             if isinstance(value, list) and value[0] is not None}
    is_scored = before.state == "graded" or (before.unscored and given.issuperset(before.unscored))
    if not is_scored or not known or known.get("settled"):
        return before
    known = {**known, "state": "graded", "score": net(entry), "settled": True}
    return replace(before, history=with_this(before, **known))


def give_back(submission: Submission, entry: Any) -> tuple[dict[str, Any], str]:
    """Enter again what waits for this version, uncommitted; what goes on waiting, and for which.
    `give_back_extension` came first: an extension waits no longer, lest it undo a later one."""
    before = submission.record
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if aside and of == submission.digest:
        put(entry, aside)
        return {}, ""
    aside = {name: value for name, value in aside.items() if name != "extension"}
    return aside, of if aside else ""


def give_back_extension(submission: Submission, book: Gradebook | None = None) -> None:
    """Before grading again: whether a submission is late depends on it."""
    record = submission.record
    if record and "extension" in record.set_aside:
        seconds = datetime.timedelta(seconds=record.set_aside["extension"])
        with gradebook(submission.course, book) as book:
            enrol(book, submission.student)
            entry_of(submission, book, extension=seconds)


def put(entry: Any, values: dict[str, Any]) -> None:
    """Set, or with None take away, what a person entered. The caller commits."""
    for notebook in entry.notebooks:
        for grade in notebook.grades:
            if grade.name in values:
                grade.manual_score, grade.extra_credit = values[grade.name] or (None, None)
                grade.needs_manual_grade = values[grade.name] is not None  # as nbgrader does
        for comment in notebook.comments:
            name = f"comment on {comment.name}"
            comment.manual_comment = values.get(name, comment.manual_comment)
