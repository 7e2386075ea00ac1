"""The record of a submission, attempts/STUDENT/LAB.json: whether it is graded, and if not, why.

nbgrader only knows scores: after a crash it shows a 0, or last week's score.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from labcore.atomic import write_atomic


@dataclass(frozen=True)
class GradingRecord:
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
    history: list[dict[str, Any]] = field(default_factory=list)  # see `updated_history`
    entered: dict[str, Any] = field(default_factory=dict)  # by hand, by digest; see byhand.archived


def now() -> str:
    """Return the current time in UTC, in the format of records."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def save_record(path: Path, record: GradingRecord) -> None:
    """Write a record atomically; a damaged one is kept beside it, because it may have manual
    scores.

    Args:
        path: the file.
        record: the record.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and read_record(path) is None:
        kept = path.with_name(path.name + ".damaged")
        path.replace(kept)
        record.notes.append(f"its earlier record was damaged; it is kept as {kept}")
    write_atomic(path, json.dumps(asdict(record), indent=1).encode())


def read_record(path: Path) -> GradingRecord | None:
    """Return the record in a file; None when the file is missing or damaged."""
    try:
        record = GradingRecord(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    kinds = {"str": str, "list[str]": list, "list[dict[str, Any]]": list, "dict[str, Any]": dict}
    sound = all(isinstance(getattr(record, one.name),
                           kinds[one.type]) for one in fields(GradingRecord)
                ) and all(isinstance(word, str) for word in (*record.notes, *record.unscored)
                          ) and all(isinstance(one, dict) for one in record.history)
    return record if sound else None


def updated_history(before: GradingRecord | None, digest: str,
                    **entry: Any) -> list[dict[str, Any]]:
    """Return the history with this attempt: one entry per submitted notebook, in the order of
    grading.

    Args:
        before: the record so far.
        digest: the notebook's digest.
        **entry: at, received, state, score, and settled when it is about to be followed by another
            (byhand.with_final_score).
    """
    history = list(before.history) if before else []
    new = {"digest": digest, **entry}
    for index, one in enumerate(history):
        if one.get("digest") == digest:
            history[index] = new
            return history
    return [*history, new]


def attempt_number(record: GradingRecord | None) -> int:
    """Return the number of the attempt that the record is about, from 1; 0 before the first."""
    digests = [one.get("digest") for one in record.history] if record else []
    return digests.index(record.digest) + 1 if record and record.digest in digests else 0
