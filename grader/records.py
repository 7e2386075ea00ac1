"""Step 4: of every submission, whether it is graded, and why not if not.

nbgrader knows scores only: a crash is a 0 there, or last week's score. So each attempt leaves a
file attempts/STUDENT/LAB.json; scores stay in the gradebook alone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.preprocessors import NbGraderPreprocessor

from grader.course import Course, digest_of_folder
from lab.errors import LabError
from lab.workspace import put_whole

LONGEST_REASON = 300
SET_ASIDE = "scores or comments given by hand were set aside, in attempts/"


class Unusable(Exception):
    """A submission that cannot be graded; its text is the reason, for the instructor's table."""


@dataclass(frozen=True)
class Record:
    """The last attempt at one submission."""

    state: str  # graded | ungraded
    digest: str  # of the notebook that was submitted then
    reason: str = ""  # why it is ungraded
    notes: list[str] = field(default_factory=list)
    at: str = ""  # when it was graded, UTC
    set_aside: dict[str, Any] = field(default_factory=dict)  # what a person had entered
    set_aside_of: str = ""  # digest of the notebook for which; empty: of several
    lab: str = ""  # digest of the lab's source that it was graded with


def place(step: Any, resources: dict[str, Any]) -> tuple[Course, str, str]:
    """(course, lab, student) that a step of nbgrader works on."""
    course = Course(Path(step.parent.parent.coursedir.root))
    return course, resources["nbgrader"]["assignment"], resources["nbgrader"]["student"]


def gradebook(course: Course) -> Gradebook:
    return Gradebook(course.settings().CourseDirectory.get(
        "db_url", f"sqlite:///{course.root / 'gradebook.db'}"))


def _file(course: Course, lab: str, student: str) -> Path:
    return course.root / "attempts" / student / f"{lab}.json"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write(course: Course, lab: str, student: str, record: Record) -> None:
    """Write it whole; a damaged one is kept beside it, since a person's scores may be in it."""
    path = _file(course, lab, student)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and _read(path) is None:
        kept = path.with_name(path.name + ".damaged")
        path.replace(kept)
        record.notes.append(f"its earlier record was damaged; it is kept as {kept}")
    put_whole(path, json.dumps(asdict(record), indent=1).encode())


def last(course: Course, lab: str, student: str) -> Record | None:
    """None before the first attempt; an ungraded one, which says so, when its file is damaged."""
    path = _file(course, lab, student)
    if not path.exists():
        return None
    return _read(path) or Record("ungraded", course.digest(lab, student),
                                 f"{path} is damaged: grade it again")


def _read(path: Path) -> Record | None:
    try:
        found = Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    sound = all(isinstance(value, str)
                for value in (found.state, found.digest, found.reason, found.at, found.lab,
                              found.set_aside_of)
                ) and all(isinstance(note, str) for note in found.notes)
    return found if sound and isinstance(found.set_aside, dict) else None


def digest_of_lab(course: Course, lab: str) -> str:
    return digest_of_folder(course.root / "source" / lab)


def state(course: Course, lab: str, student: str) -> tuple[str, str]:
    """("graded", "") or ("ungraded", reason), for the submission as it is now."""
    digest, record = course.digest(lab, student), last(course, lab, student)
    if record and record.state == "ungraded" and record.digest == digest:
        return "ungraded", record.reason
    if not (course.root / "submitted" / student / lab).is_dir():
        return "ungraded", "nothing submitted"
    if record is None or not course.notebook("autograded", lab, student).exists():
        return "ungraded", "not graded yet"
    if record.digest != digest:
        return "ungraded", "submitted again since it was graded"
    if record.lab != digest_of_lab(course, lab):
        return "ungraded", "the lab was changed since it was graded"
    return "graded", ""


def leave_ungraded(course: Course, lab: str, student: str, reason: str) -> Record:
    """Take back whatever is claimed about an earlier submission: scores, notebook, feedback.

    What a person had entered (scores, comments, an extension) goes into the record, and comes back
    when the same notebook is graded.
    """
    for step in ("autograded", "feedback"):
        shutil.rmtree(course.root / step / student / lab, ignore_errors=True)
    before, entered = last(course, lab, student), {}
    with gradebook(course) as book:
        enrol(book, student)
        with contextlib.suppress(MissingEntry):
            entered = _entered_by_hand(book.find_submission(lab, student))
            book.remove_submission(lab, student)
    aside, of = _together(before, entered)
    notes = [SET_ASIDE] * bool(set(aside) - {"extension"})
    record = Record("ungraded", course.digest(lab, student), reason, notes, now(), aside, of)
    write(course, lab, student, record)
    return record


@contextlib.contextmanager
def ungraded_on_error(course: Course, lab: str, student: str) -> Iterator[None]:
    """Around a step of nbgrader: its own commands too leave no earlier score when it fails."""
    try:
        yield
    except BaseException as error:  # Ctrl-C too
        leave_ungraded(course, lab, student, explain(error))
        raise


def explain(error: BaseException) -> str:
    """One line for the instructor."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped while it was graded"
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (Unusable, LabError)):
        text = f"{type(error).__name__}: {text}" if str(error) else text
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "..."


def enrol(book: Gradebook, student: str) -> None:
    """Into the gradebook; formgrader calls who has no name there "None, None"."""
    found = book.update_or_create_student(student)
    if not found.last_name and not found.first_name:
        book.update_or_create_student(student, last_name=student, first_name="")


def set_aside_older(course: Course, lab: str, student: str) -> None:
    """What a person had entered for an earlier notebook says nothing about a new one, and nbgrader
    would keep it."""
    before = last(course, lab, student)
    if before is None or before.state != "graded" or before.digest == course.digest(lab, student):
        return
    with gradebook(course) as book, contextlib.suppress(MissingEntry):
        submission = book.find_submission(lab, student)
        entered = _entered_by_hand(submission)
        entered.pop("extension", None)  # it is the student's, not the notebook's
        aside, of = _together(before, entered)
        write(course, lab, student, replace(before, set_aside=aside, set_aside_of=of))
        _enter(book, submission, dict.fromkeys(entered))


def _together(before: Record | None, entered: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What was set aside, now with `entered`; and for which notebook."""
    aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
    if entered:
        new = before.digest if before and before.state == "graded" else ""
        of = new if not aside or of == new else ""
    return aside | entered, of


def _entered_by_hand(submission: Any) -> dict[str, Any]:
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


def give_back_extension(course: Course, lab: str, student: str) -> None:
    """Before grading again: whether a submission is late depends on it."""
    record = last(course, lab, student)
    if record and "extension" in record.set_aside:
        seconds = datetime.timedelta(seconds=record.set_aside["extension"])
        with gradebook(course) as book:
            enrol(book, student)
            book.update_or_create_submission(lab, student, extension=seconds)


def _enter(book: Gradebook, submission: Any, values: dict[str, Any]) -> None:
    """Set, or with None take away, what a person entered."""
    for notebook in submission.notebooks:
        for grade in notebook.grades:
            if grade.name in values:
                grade.manual_score, grade.extra_credit = values[grade.name] or (None, None)
                grade.needs_manual_grade = values[grade.name] is not None  # as nbgrader does
        for comment in notebook.comments:
            name = f"comment on {comment.name}"
            comment.manual_comment = values.get(name, comment.manual_comment)
    book.db.commit()


class SaveRecord(NbGraderPreprocessor):
    """The last of nbgrader's steps with a submission: it came through."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        course, lab, student = place(self, resources)
        before, digest = last(course, lab, student), course.digest(lab, student)
        notes = list(nb.metadata.get("grader", {}).get("notes", []))
        aside, of = (before.set_aside, before.set_aside_of) if before else ({}, "")
        with gradebook(course) as book:
            enrol(book, student)
            if aside and of == digest:
                _enter(book, book.find_submission(lab, student), aside)
                aside, of = {}, ""
        notes += [SET_ASIDE] * bool(set(aside) - {"extension"})
        write(course, lab, student, Record("graded", digest, "", notes, now(), aside, of,
                                           digest_of_lab(course, lab)))
        return nb, resources
