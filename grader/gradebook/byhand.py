"""Scores, extra credit, comments, and extensions that a person entered in formgrader.

They belong to one submitted notebook. While it is not graded, they wait in the record. They return
when the same notebook is graded, and do not apply to a new one.
"""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import replace
from typing import Any

from nbgrader.api import Gradebook, MissingEntry

from grader.course import Course, Submission
from grader.course.record import GradingRecord, updated_history
from grader.gradebook.records import enroll, entry_of, gradebook, net_score

SET_ASIDE = "scores or comments given by hand were set aside, in attempts/"


def set_aside_notes(aside: dict[str, Any]) -> list[str]:
    """Return the notes about scores and comments that were set aside."""
    return [SET_ASIDE] * bool(set(aside) - {"extension"})


def entered_by_hand(entry: Any) -> dict[str, Any]:
    """Return what a person entered, keyed by cell name, by "comment on NAME", or by "extension"."""
    values: dict[str, Any] = {}
    for notebook in entry.notebooks:
        for grade in notebook.grades:
            if grade.manual_score is not None or grade.extra_credit:
                values[grade.name] = [grade.manual_score, grade.extra_credit]
        for comment in notebook.comments:
            if comment.manual_comment:
                values[f"comment on {comment.name}"] = comment.manual_comment
    if entry.extension:
        values["extension"] = entry.extension.total_seconds()
    return values


def merged(before: GradingRecord | None, entered: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return what was set aside, together with `entered`, and the digest of its notebook.

    Args:
        before: the submission's record.
        entered: the result of `entered_by_hand`.
    """
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if any(aside.get(name) != value for name, value in entered.items()):
        new = before.digest if before and (before.state == "graded" or before.unscored) else ""
        of = new if not aside or of == new else ""
    return aside | entered, of


def set_aside_older(submission: Submission, book: Gradebook | None = None) -> None:
    """Set aside what a person entered for an older version, because nbgrader would keep it.

    Call it before the new version is entered.

    Args:
        submission: the submission.
        book: the gradebook, if it is open.
    """
    before = submission.record
    if before is None or before.digest == submission.digest:
        return
    with gradebook(submission.course, book) as book, contextlib.suppress(MissingEntry):
        entry = book.find_submission(*submission.key)
        values = entered_by_hand(entry)
        values.pop("extension", None)  # it is the student's, not the notebook's
        aside, of = merged(before, values)
        after = replace(with_final_score(before, entry), set_aside=aside, set_aside_of=of)
        if after != before:
            submission.save(after)
        if values:
            set_values(entry, dict.fromkeys(values))
            book.db.commit()


def set_aside_all(course: Course, lab: str, book: Gradebook) -> None:
    """Set aside all manual scores of a lab and remove its submissions, so that its cells can
    change.

    Graded submissions will be graded again, because the lab's digest in their records is different.

    Args:
        course: the course.
        lab: the lab's name.
        book: the gradebook.
    """
    for entry in list(book.find_assignment(lab).submissions):
        submission = Submission(course, lab, entry.student.id)
        before = submission.record or GradingRecord("ungraded", "", "not graded yet")
        aside, of = merged(before, entered_by_hand(entry))
        submission.save(replace(with_final_score(before, entry), set_aside=aside, set_aside_of=of))
        book.remove_submission(*submission.key)


def with_final_score(before: GradingRecord, entry: Any) -> GradingRecord:
    """Return the record with the notebook's current score, manual scores included, in its history.

    The gradebook is about to lose this score, and a policy may count it. The score is recorded only
    once, because a crash may leave the gradebook without the manual scores.

    Args:
        before: the record.
        entry: the submission in the gradebook.
    """
    known = next((one for one in before.history if one.get("digest") == before.digest), {})
    given = {name for name, value in entered_by_hand(entry).items()
             if isinstance(value, list) and value[0] is not None}
    is_scored = before.state == "graded" or (before.unscored and given.issuperset(before.unscored))
    if not is_scored or not known or known.get("settled"):
        return before
    known = {**known, "state": "graded", "score": net_score(entry), "settled": True}
    return replace(before, history=updated_history(before, **known))


def reinstate(submission: Submission, entry: Any) -> tuple[dict[str, Any], str]:
    """Enter again, uncommitted, what was set aside for this version; return what is still set
    aside, and its notebook's digest.

    Call `reinstate_extension` first: an extension must not undo a later one.

    Args:
        submission: the submission.
        entry: the submission in the gradebook.
    """
    before = submission.record
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if aside and of == submission.digest:
        set_values(entry, aside)
        return {}, ""
    aside = {name: value for name, value in aside.items() if name != "extension"}
    return aside, of if aside else ""


def reinstate_extension(submission: Submission, book: Gradebook | None = None) -> None:
    """Enter an extension that was set aside, because whether a submission is late depends on it.

    Args:
        submission: the submission.
        book: the gradebook, if it is open.
    """
    record = submission.record
    if record and "extension" in record.set_aside:
        seconds = datetime.timedelta(seconds=record.set_aside["extension"])
        with gradebook(submission.course, book) as book:
            enroll(book, submission.student)
            entry_of(submission, book, extension=seconds)


def set_values(entry: Any, values: dict[str, Any]) -> None:
    """Set what a person entered, or remove it where the value is None. The caller commits.

    Args:
        entry: the submission in the gradebook.
        values: keyed as in `entered_by_hand`.
    """
    for notebook in entry.notebooks:
        for grade in notebook.grades:
            if grade.name in values:
                grade.manual_score, grade.extra_credit = values[grade.name] or (None, None)
                grade.needs_manual_grade = values[grade.name] is not None  # as nbgrader does
        for comment in notebook.comments:
            name = f"comment on {comment.name}"
            comment.manual_comment = values.get(name, comment.manual_comment)
