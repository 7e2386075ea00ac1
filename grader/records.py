"""Step 4: of every submission, whether it is graded, and why not if not.

nbgrader knows scores only: a crash is a 0 there, or last week's score. So each submission has a
file attempts/STUDENT/LAB.json; scores that count stay in the gradebook alone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from sqlalchemy.exc import OperationalError
from traitlets.config import Config

from grader.course import Course, digest_of_folder
from grader.gradebook.decisions import set_aside
from grader.gradebook.faults import explained
from grader.gradebook.mark import sqlite_file
from labcore.errors import LabError
from labcore.workspace import put_whole

LONGEST_REASON = 300
STOPPED = "stopped while it was graded"
NOT_ISOLATED = "graded without isolation"
NOTHING_SUBMITTED = "nothing submitted"


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
    attempt: str = ""  # id of the result that the gradebook has; empty: of nbgrader's own commands
    unscored: list[str] = field(default_factory=list)  # checks that a person may still score
    history: list[dict[str, Any]] = field(default_factory=list)  # see `with_this`


def place(step: Any, resources: dict[str, Any]) -> tuple[Course, str, str]:
    """(course, lab, student) that a step of nbgrader works on."""
    course = Course(Path(step.parent.parent.coursedir.root))
    return course, resources["nbgrader"]["assignment"], resources["nbgrader"]["student"]


def database(settings: Config, course: Course) -> str:
    """Where nbgrader has the gradebook, as an URL."""
    return settings.CourseDirectory.get("db_url", f"sqlite:///{course.root / 'gradebook.db'}")


def gradebook_file(course: Course) -> Path | None:
    """The gradebook's file; None when it is in a database server."""
    return sqlite_file(database(course.settings(), course))


@contextlib.contextmanager
def gradebook(course: Course, book: Gradebook | None = None) -> Iterator[Gradebook]:
    """`book` if it is open already (and stays so), else the course's, for a while. Raises LabError
    when it is lost, locked or cannot be written."""
    if book is not None:
        yield book
        return
    url = database(course.settings(), course)
    with explained(sqlite_file(url) or Path(url.partition(":")[0])), Gradebook(url) as opened:
        yield opened


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
    kinds = {"str": str, "list[str]": list, "list[dict[str, Any]]": list, "dict[str, Any]": dict}
    sound = all(isinstance(getattr(found, one.name), kinds[one.type]) for one in fields(Record)
                ) and all(isinstance(word, str) for word in (*found.notes, *found.unscored)
                          ) and all(isinstance(one, dict) for one in found.history)
    return found if sound else None


def digest_of_lab(course: Course, lab: str) -> str:
    return digest_of_folder(course.root / "source" / lab)


def state(course: Course, lab: str, student: str, book: Gradebook | None = None
          ) -> tuple[str, str]:
    """("graded", "") or ("ungraded", reason), for the submission as it is now."""
    digest, record = course.digest(lab, student), last(course, lab, student)
    if why := set_aside(course, lab, student):
        return "ungraded", why
    if (record and record.state == "ungraded" and record.digest == digest
            and not _scored_by_hand(course, lab, student, record, book)):
        return "ungraded", record.reason
    if not course.submitted(lab, student):
        return "ungraded", NOTHING_SUBMITTED
    if record is None or not course.notebook("autograded", lab, student).exists():
        return "ungraded", "not graded yet"
    if record.digest != digest:
        return "ungraded", "submitted again since it was graded"
    if record.lab != digest_of_lab(course, lab):
        return "ungraded", "the lab was changed since it was graded"
    return "graded", ""


def is_entered(book: Gradebook, lab: str, student: str) -> bool:
    """Whether the gradebook has it: nbgrader's own commands may have removed the student."""
    with contextlib.suppress(MissingEntry):
        return book.find_submission(lab, student) is not None
    return False


def _scored_by_hand(course: Course, lab: str, student: str, record: Record, book: Gradebook | None
                    ) -> bool:
    """Whether a person gave a score for every check that had none."""
    if not record.unscored:
        return False
    with gradebook(course, book) as book:
        try:
            submission = book.find_submission(lab, student)
        except MissingEntry:
            return False
        given = {grade.name for notebook in submission.notebooks for grade in notebook.grades
                 if grade.manual_score is not None}
    return given.issuperset(record.unscored)


def with_this(before: Record | None, digest: str, **entry: Any) -> list[dict[str, Any]]:
    """The history with this attempt in it: one entry for each notebook that was submitted, in the
    order in which they were first graded. `entry`: at, received, state, score, and settled when
    it is about to be followed by another (byhand.settled)."""
    found = list(before.history) if before else []
    new = {"digest": digest, **entry}
    for index, one in enumerate(found):
        if one.get("digest") == digest:
            found[index] = new
            return found
    return [*found, new]


def number(record: Record | None) -> int:
    """Which attempt the record is about, from 1; 0 before the first."""
    digests = [one.get("digest") for one in record.history] if record else []
    return digests.index(record.digest) + 1 if record and record.digest in digests else 0


def explain(error: BaseException) -> str:
    """One line for the instructor."""
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (Unusable, LabError)):
        text = f"{type(error).__name__}: {text}" if str(error) else text
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "..."


def is_ours(error: BaseException) -> bool:
    """Return whether the machine or the course is at fault, rather than one submission."""
    return isinstance(error, OSError | LabError | OperationalError) and not isinstance(
        error, Unusable)


def submission_in(book: Gradebook, lab: str, student: str, **fields: Any) -> Any:
    """The gradebook's submission, with these fields; made where it is not there."""
    with book.db.no_autoflush:  # nbgrader looks at the lab's notebooks before it adds a new one
        return book.update_or_create_submission(lab, student, **fields)


def enrol(book: Gradebook, student: str) -> None:
    """Into the gradebook; formgrader calls who has no name there "None, None"."""
    with contextlib.suppress(MissingEntry):
        found = book.find_student(student)
        if found.last_name or found.first_name:
            return
    book.update_or_create_student(student, last_name=student, first_name="")
