"""Which gradebook this course has: `.gradebook.json` beside it, compared with the file's header.

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
from labcore.atomic import put_whole

LARGEST = 2**31 - 2


@dataclass(frozen=True)
class Mark:
    """A gradebook's name and its number of changes; a name of 0 has never been marked."""

    name: int
    changes: int


def sqlite_file(url: str) -> Path | None:
    """Return the file of a gradebook's URL, or None for a database server."""
    found = make_url(url)
    if found.get_backend_name() != "sqlite" or found.database in (None, "", ":memory:"):
        return None
    return Path(found.database).absolute()


def file_of(path: Path) -> Path:
    """Return the path of the mark for the gradebook at `path`."""
    return path.with_name(".gradebook.json")


def noted(path: Path) -> Mark | None:
    """The mark kept beside the gradebook; None without one, or with a damaged one."""
    try:
        found = Mark(**json.loads(file_of(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if type(found.name) is int and type(found.changes) is int else None


def note(path: Path, mark: Mark) -> None:
    """Keep `mark` beside the gradebook. A kill before this leaves a smaller count, which is fine:
    the gradebook may be ahead of its mark, never behind."""
    put_whole(file_of(path), json.dumps(asdict(mark)).encode(), 0o600)


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing SQLite file, never making one. Writable, so that SQLite can roll back what
    a killed process left unfinished."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True,
                           timeout=SECONDS_TO_WAIT, isolation_level=None)


def inside(connection: sqlite3.Connection) -> Mark:
    """Return the mark in the file's header."""
    name, = connection.execute("PRAGMA application_id").fetchone()
    changes, = connection.execute("PRAGMA user_version").fetchone()
    return Mark(name, changes)


def put_inside(connection: sqlite3.Connection, mark: Mark) -> None:
    """Write the mark into the header, in the current transaction if there is one."""
    connection.execute(f"PRAGMA application_id = {mark.name:d}")
    connection.execute(f"PRAGMA user_version = {min(mark.changes, LARGEST):d}")


def new_name() -> int:
    return 1 + secrets.randbelow(LARGEST)
