"""Scores, extra credit, comments, and extensions that a person entered in formgrader.

They belong to one submitted notebook. While it is not graded, they wait in the record. They return
when the same notebook is graded, and do not apply to a new one.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nbgrader.api import Gradebook, MissingEntry

from grader.course import Course, Submission
from grader.course.record import GradingRecord, updated_history
from grader.gradebook.records import enroll, entry_of, gradebook, net_score

COMMENT = "comment on "
SET_ASIDE = "to decide: scores or comments for an earlier version of"


def set_aside_notes(aside: dict[str, Any], kept: Sequence[str] = ()) -> list[str]:
    """Return the notes about what a person entered for another version.

    Args:
        aside: what waits for a decision.
        kept: the cells whose scores hold for this version, too.
    """
    cells = {name.removeprefix(COMMENT) for name in aside if name != "extension"}
    notes = [f"{SET_ASIDE} {', '.join(sorted(cells))} (`lab review`)"] * bool(cells)
    return notes + [f"manual scores kept for unchanged answers: {', '.join(sorted(kept))}"
                    ] * bool(kept)


def entered_by_hand(entry: Any) -> dict[str, Any]:
    """Return what a person entered, keyed by cell name, by "comment on NAME", or by "extension"."""
    values: dict[str, Any] = {}
    for notebook in entry.notebooks:
        for grade in notebook.grades:
            if grade.manual_score is not None or grade.extra_credit:
                values[grade.name] = [grade.manual_score, grade.extra_credit]
        for comment in notebook.comments:
            if comment.manual_comment:
                values[COMMENT + comment.name] = comment.manual_comment
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
    before = known = submission.record
    if before is None or before.digest == submission.digest:
        return
    with gradebook(submission.course, book) as book, contextlib.suppress(MissingEntry):
        entry = book.find_submission(*submission.key)
        values = entered_by_hand(entry)
        values.pop("extension", None)  # it is the student's, not the notebook's
        before = archived(before, entry, answers_of(submission))
        aside, of = merged(before, values)
        after = replace(with_final_score(before, entry), set_aside=aside, set_aside_of=of)
        if after != known:
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
        before = archived(before, entry, answers_of(submission))
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


def answers_of(submission: Submission) -> dict[str, str]:
    """Return the fingerprints of the answers in the notebook that was graded last, by cell; empty
    if there is none."""
    try:
        notebook = json.loads(submission.notebook("autograded").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return fingerprints(notebook)


def fingerprints(notebook: Any) -> dict[str, str]:
    """Return a digest by cell name of what a manual score or comment is about: an answer is itself,
    a check is of all answers above it.

    Args:
        notebook: a rebuilt notebook.
    """
    result, above = {}, hashlib.sha256()
    for cell in notebook.get("cells", []):
        marks = cell.get("metadata", {}).get("nbgrader", {})
        name, source = marks.get("grade_id"), cell.get("source", "")
        if marks.get("solution"):
            source = source if isinstance(source, str) else "".join(source)
            text = json.dumps([source, cell.get("attachments", {})], sort_keys=True)
            result[name] = hashlib.sha256(text.encode()).hexdigest()
            above.update(result[name].encode())
        elif marks.get("grade"):
            result[name] = above.hexdigest()
    return result


def archived(before: GradingRecord | None, entry: Any, answers: Mapping[str, str]
             ) -> GradingRecord | None:
    """Return the record with what a person entered for its version, which may come back: by digest
    and name, the value, the answer's fingerprint, and the cell's points.

    What was archived before and is in the gradebook no longer, a person has cleared, unless it is
    on hold: then a call that was killed took it out of the gradebook.

    Args:
        before: the record.
        entry: the submission in the gradebook.
        answers: the fingerprints of its answers.
    """
    values = entered_by_hand(entry)
    values.pop("extension", None)
    if before is None or not before.digest:
        return before
    points = {grade.name: grade.max_score for one in entry.notebooks for grade in one.grades}
    new = {name: [value, answers.get(name.removeprefix(COMMENT), ""), points.get(name)]
           for name, value in values.items()}
    held = {name: one for name, one in before.entered.get(before.digest, {}).items()
            if before.set_aside.get(name) == one[0]}
    others = {digest: known for digest, known in before.entered.items() if digest != before.digest}
    return replace(before, entered=others | ({before.digest: held | new} if held or new else {}))


def without(record: GradingRecord, names: Collection[str], archives: bool) -> GradingRecord:
    """Return the record without these entries on hold, and without the notes about them.

    Args:
        record: the record.
        names: keyed as in `entered_by_hand`.
        archives: also drop them from the versions that they were entered for.
    """
    known = record.entered
    if archives:
        known = {digest: {name: one for name, one in values.items()
                          if name not in names or record.set_aside.get(name) != one[0]}
                 for digest, values in known.items()}
    aside = {name: value for name, value in record.set_aside.items() if name not in names}
    notes = [note for note in record.notes if not note.startswith(SET_ASIDE)]
    return replace(record, set_aside=aside, set_aside_of=record.set_aside_of if aside else "",
                   notes=notes + set_aside_notes(aside), entered=known)


def reinstate(submission: Submission, entry: Any, notebook: Any
              ) -> tuple[dict[str, Any], str, list[str]]:
    """Enter again, uncommitted, what was set aside for this version, and what was for the same
    answer in another; return what is still set aside, its notebook's digest, and the cells kept.

    Call `reinstate_extension` first: an extension must not undo a later one.

    Args:
        submission: the submission.
        entry: the submission in the gradebook.
        notebook: the rebuilt notebook of this version.
    """
    before = submission.record
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if aside and of == submission.digest:
        set_values(entry, aside)
        return {}, "", []
    aside = {name: value for name, value in aside.items() if name != "extension"}
    if before is None:
        return aside, "", []
    known = entered_by_hand(entry)
    if before.digest != submission.digest:  # this version was graded by hand before
        own = before.entered.get(submission.digest, {})
        back = {name: one[0] for name, one in own.items() if name not in known}
        set_values(entry, back, again=False)
        known |= back
    same = _same_answers(before, entry, aside, notebook)
    keep = {name: aside[name] for name in same if name not in known}
    set_values(entry, keep, again=False)
    aside = {name: value for name, value in aside.items()
             if name not in keep and known.get(name) != value}
    return aside, of if aside else "", sorted({name.removeprefix(COMMENT) for name in keep})


def _same_answers(before: GradingRecord, entry: Any, aside: dict[str, Any], notebook: Any
                  ) -> list[str]:
    """Return the names of what is set aside whose answer and points are the same in this version.
    """
    answers = fingerprints(notebook)
    points = {grade.name: grade.max_score for one in entry.notebooks for grade in one.grades}
    return [name for name, value in aside.items() if any(
        name in one and one[name] == [value, answers.get(name.removeprefix(COMMENT)),
                                      points.get(name)]
        for one in before.entered.values())]


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


def set_values(entry: Any, values: dict[str, Any], again: bool = True) -> None:
    """Set what a person entered, or remove it where the value is None. The caller commits.

    Args:
        entry: the submission in the gradebook.
        values: keyed as in `entered_by_hand`.
        again: whether a person should look at the scores again, as nbgrader does.
    """
    for notebook in entry.notebooks:
        for grade in notebook.grades:
            if grade.name in values:
                grade.manual_score, grade.extra_credit = values[grade.name] or (None, None)
                grade.needs_manual_grade = again and values[grade.name] is not None
        for comment in notebook.comments:
            name = COMMENT + comment.name
            comment.manual_comment = values.get(name, comment.manual_comment)
