"""Identify the course's gradebook: `.gradebook.json` beside it must match the file's header.

SQLite reserves two numbers in its header for applications. `application_id` names the gradebook,
and `user_version` counts the transactions that changed it. A new or foreign file has another name;
an older copy has a smaller count. Neither number is used by nbgrader or its migrations.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from grader.gradebook.faults import SECONDS_TO_WAIT
from labcore.atomic import write_atomic

LARGEST = 2**31 - 2


@dataclass(frozen=True)
class Mark:
    """A gradebook's name and its number of changes; an unmarked one has the name 0."""

    name: int
    changes: int


def sqlite_file(url: str) -> Path | None:
    """Return the file of a gradebook's URL, or None for a database server."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(parsed.database).absolute()


def file_of(path: Path) -> Path:
    """Return the path of the mark for the gradebook at `path`."""
    return path.with_name(".gradebook.json")


def saved_mark(path: Path) -> Mark | None:
    """Return the mark saved beside the gradebook; None if it is missing or damaged."""
    try:
        mark = Mark(**json.loads(file_of(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return mark if type(mark.name) is int and type(mark.changes) is int else None


def save_mark(path: Path, mark: Mark) -> None:
    """Save a mark beside the gradebook. A crash before this leaves a smaller count, which is
    allowed.

    Args:
        path: the gradebook.
        mark: the mark.
    """
    write_atomic(file_of(path), json.dumps(asdict(mark)).encode(), 0o600)


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing SQLite file. It is writable, so that SQLite can roll back what a killed
    process left unfinished."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True,
                           timeout=SECONDS_TO_WAIT, isolation_level=None)


def header_mark(connection: sqlite3.Connection) -> Mark:
    """Return the mark in the file's header."""
    name, = connection.execute("PRAGMA application_id").fetchone()
    changes, = connection.execute("PRAGMA user_version").fetchone()
    return Mark(name, changes)


def write_header_mark(connection: sqlite3.Connection, mark: Mark) -> None:
    """Write the mark into the header, in the current transaction if there is one.

    Args:
        connection: the gradebook.
        mark: the mark.
    """
    connection.execute(f"PRAGMA application_id = {mark.name:d}")
    connection.execute(f"PRAGMA user_version = {min(mark.changes, LARGEST):d}")


def new_name() -> int:
    return 1 + secrets.randbelow(LARGEST)
