"""An instructor's decisions about whole labs: `decisions.jsonl` in the course folder.

A decided score or an excuse counts no matter what is graded afterwards. Lines are only appended, so
the file also records earlier decisions, their authors, and their reasons.
"""

from __future__ import annotations

import datetime
import fcntl
import getpass
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grader.course import Course, Submission
from grader.course.folder import until_changed
from labcore.atomic import write_atomic
from labcore.errors import LabError

SCORE, EXTENSION, ASIDE = "score", "extension", "aside"
DROPPED = "dropped"  # a student who left the course, without a lab
WITHDRAWN, CHOSEN = "withdrawn", "chosen"  # versions of a submission
KINDS = (SCORE, EXTENSION, ASIDE, WITHDRAWN, CHOSEN, DROPPED)
EXCUSED = "excused"


@dataclass(frozen=True)
class Decision:
    """One line of the file.

    Attributes:
        kind: score, extension, aside, withdrawn, chosen, or dropped.
        value: points or "excused"; a due date in ISO 8601; the digest of the submission that is set
            aside or that counts; all withdrawn digests, separated by spaces; None if the decision
            was taken back.
        who: the user who ran the command.
        at: UTC time.
    """

    kind: str
    student: str
    lab: str
    value: float | str | None
    why: str
    who: str
    at: str

    def __str__(self) -> str:
        what = f"{self.value:g} points" if isinstance(self.value, float) else str(self.value)
        why = f": {self.why}" if self.why else ""
        return f"{what}, by {self.who} on {self.at[:16].replace('T', ' ')} UTC{why}"


def file_of(course: Course) -> Path:
    return course.root / "decisions.jsonl"


def current(course: Course, kind: str) -> dict[tuple[str, str], Decision]:
    """Return the decisions of one kind that are in effect, by (lab, student).

    Args:
        course: the course.
        kind: SCORE, EXTENSION, or ASIDE.

    Raises LabError when a line is damaged, because a decision is never dropped silently.
    """
    return {key: one for key, one in last(course, kind).items() if one.value is not None}


def last(course: Course, kind: str) -> dict[tuple[str, str], Decision]:
    """Return the last decision of one kind by (lab, student), including those that take one back.

    Args:
        course: the course.
        kind: SCORE, EXTENSION, or ASIDE.
    """
    return {(one.lab, one.student): one for one in _all(course) if one.kind == kind}


def _all(course: Course) -> list[Decision]:
    return _read(file_of(course))


def dropped(course: Course) -> dict[str, str]:
    """Return the students who left the course, with the reason."""
    return {student: one.why for (_, student), one in current(course, DROPPED).items()}


def set_aside(submission: Submission) -> str:
    """Return why a person set the current submission aside; empty if nobody did.

    A new version of the submission is graded again.
    """
    decision = current(submission.course, ASIDE).get(submission.key)
    if decision is None or decision.value != submission.digest:
        return ""
    return f"set aside by {decision.who}: {decision.why}"


@dataclass(frozen=True)
class Versions:
    """What a person decided about the versions of one submission, by digest."""

    withdrawn: Mapping[str, str] = field(default_factory=dict)  # with the reason for each
    chosen: str = ""
    why_chosen: str = ""

    def why_not(self, digest: str) -> str:
        """Return why a version does not count, if a person decided so; empty if it may count."""
        if digest in self.withdrawn:
            return f"withdrawn: {self.withdrawn[digest]}"
        return f"another version was chosen: {self.why_chosen}" * bool(
            self.chosen and digest != self.chosen)

    def allowed(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in digests if digest not in self.withdrawn]


def versions(course: Course) -> dict[tuple[str, str], Versions]:
    """Return what a person decided about submissions' versions, by (lab, student)."""
    withdrawn: dict[tuple[str, str], dict[str, str]] = {}
    for one in _all(course):
        if one.kind == WITHDRAWN:  # each lists all that are withdrawn: older ones keep their reason
            before = withdrawn.get((one.lab, one.student), {})
            withdrawn[one.lab, one.student] = {
                digest: before.get(digest, one.why) for digest in str(one.value or "").split()}
    chosen = current(course, CHOSEN)
    return {key: Versions(withdrawn.get(key, {}),
                          *((str(chosen[key].value), chosen[key].why) if key in chosen else ()))
            for key in withdrawn | chosen}


@until_changed(list)
def _read(path: Path) -> list[Decision]:
    decisions = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            decisions.append(_validated(Decision(**json.loads(line))))
        except (ValueError, TypeError, RecursionError):
            raise LabError(f"{path}, line {number} is damaged: correct it, or restore the file "
                           "from a backup of the course folder") from None
    return decisions


def _validated(one: Decision) -> Decision:
    """Return the decision. Raises ValueError when it is not valid."""
    texts = (one.kind, one.student, one.lab, one.why, one.who, one.at)
    is_valid = one.value is None or (
        one.value == EXCUSED or _is_number(one.value) if one.kind == SCORE
        else isinstance(one.value, str) and one.kind in KINDS)
    if not all(isinstance(text, str) for text in texts) or not is_valid or one.kind not in KINDS:
        raise ValueError
    return one


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def add(course: Course, kind: str, students: Sequence[str], lab: str, value: float | str | None,
        why: str) -> None:
    """Write one decision for each student, all of them or none.

    Args:
        course: the course folder.
        kind: SCORE, EXTENSION, or ASIDE.
        students: their ids.
        lab: name of the lab.
        value: points or EXCUSED, a due date in ISO 8601, or a digest; None takes an earlier
            decision back.
        why: the reason, in the instructor's words.
    """
    if not students:
        return
    path = file_of(course)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    lines = [json.dumps(asdict(_validated(Decision(kind, student, lab, value, why, _user(), now))))
             for student in students]
    with open(course.root / ".decisions.lock", "w") as lock:  # for milliseconds: no batch holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = path.read_bytes() if path.exists() else b""
        write_atomic(path, before + "".join(line + "\n" for line in lines).encode(), 0o600)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "?"
