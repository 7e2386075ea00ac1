"""The record of a submission, attempts/STUDENT/LAB.json: whether it is graded, and why not if not.

nbgrader knows scores only: a crash is a 0 there, or last week's score.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from labcore.atomic import put_whole


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


def now() -> str:
    """The time in UTC, as records have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def save_record(path: Path, record: Record) -> None:
    """Write it whole; a damaged one is kept beside it, since a person's scores may be in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and read_record(path) is None:
        kept = path.with_name(path.name + ".damaged")
        path.replace(kept)
        record.notes.append(f"its earlier record was damaged; it is kept as {kept}")
    put_whole(path, json.dumps(asdict(record), indent=1).encode())


def read_record(path: Path) -> Record | None:
    """The record in a file; None when the file is missing or damaged."""
    try:
        found = Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    kinds = {"str": str, "list[str]": list, "list[dict[str, Any]]": list, "dict[str, Any]": dict}
    sound = all(isinstance(getattr(found, one.name), kinds[one.type]) for one in fields(Record)
                ) and all(isinstance(word, str) for word in (*found.notes, *found.unscored)
                          ) and all(isinstance(one, dict) for one in found.history)
    return found if sound else None


def with_this(before: Record | None, digest: str, **entry: Any) -> list[dict[str, Any]]:
    """The history with this attempt in it: one entry for each notebook that was submitted, in the
    order in which they were first graded. `entry`: at, received, state, score, and settled when
    it is about to be followed by another (byhand.with_final_score)."""
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
