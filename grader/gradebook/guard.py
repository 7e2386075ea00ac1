"""Refuse a gradebook that is missing, damaged, replaced, or out of date.

nbgrader silently creates a new, empty gradebook if there is none: the class, every score entered by
hand, and every extension would be lost. So each opening is checked here first.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from grader.gradebook import backups, entered, mark
from grader.gradebook.faults import CORRUPTION_ERRORS, RESTORE, StorageFault, explained
from labcore.errors import LabError

ACCEPT = "if it is meant to be as it is, `lab gradebook accept` keeps it"
_sound: set[tuple[str, int, int, int]] = set()  # files as this process last checked them


class LostGradebook(StorageFault):
    """Raised when the gradebook is not the course's own; no command may write into it."""


def require_sound(path: Path) -> None:
    """Raise LostGradebook unless the gradebook is the course's own, or the course never had one.

    Raises StorageFault when it is locked or cannot be opened.
    """
    if is_missing(path):
        if reason := _evidence(path):
            raise LostGradebook(f"{path} is {_missing(path)}, but {reason}: {RESTORE}; {ACCEPT}")
        return
    if not path.is_file():
        raise LostGradebook(f"{path} is not a file: {RESTORE}")
    if not os.access(path, os.R_OK):
        raise LabError(f"{path} cannot be read by your user: make it readable, or {RESTORE}")
    with explained(path):
        try:
            connection = mark.connect(path)
        except sqlite3.OperationalError as error:
            raise LostGradebook(f"{path} cannot be opened ({error}): {RESTORE}") from error
        try:
            _require_intact(path, connection)
            if problem := difference(path, connection):
                raise LostGradebook(f"{path} {problem}: {RESTORE}; {ACCEPT}")
        finally:
            connection.close()


@contextlib.contextmanager
def protected(path: Path | None) -> Iterator[None]:
    """Check the gradebook, and back it up before and after the block. Raises LabError.

    With None, the gradebook is in a database server, which has its own backups.
    """
    if path is None:
        yield
        return
    require_sound(path)
    with backups.backed_up(path):
        yield


def is_missing(path: Path) -> bool:
    """Return whether SQLite would create a new gradebook there."""
    return not os.path.lexists(path) or (path.is_symlink() and not path.exists()) or (
        path.is_file() and path.stat().st_size == 0 and not _journal(path))


def _journal(path: Path) -> bool:
    return any(path.with_name(path.name + ending).exists() for ending in ("-journal", "-wal"))


def _missing(path: Path) -> str:
    return "empty (0 bytes)" if path.is_file() else "missing"


def _evidence(path: Path) -> str:
    """Return the evidence that the course had a gradebook; empty if it never had one."""
    if missing_grades := entered.missing_grades(path.parent, None):
        return f"attempts/ has {_count(missing_grades)}"
    if copies := backups.backups_of(path):
        return f"backups/ has a copy from {copies[0].time:%Y-%m-%d %H:%M:%S} UTC"
    if mark.file_of(path).exists():
        return f"{mark.file_of(path).name} says that the course had one"
    return ""


def _count(keys: list[entered.Key]) -> str:
    grades = f"{len(keys)} grade" + "s" * (len(keys) != 1)
    return f"{grades} (the first: {keys[0][1]}, {keys[0][0]})"


def _require_intact(path: Path, connection: sqlite3.Connection) -> None:
    """Check the pages, unless this process has checked them and the file has not changed since."""
    status = path.stat()
    key = str(path), status.st_ino, status.st_mtime_ns, status.st_size
    if key in _sound:
        return
    try:
        problems = [line for line, in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.DatabaseError as error:
        if not (error.sqlite_errorname or "").startswith(CORRUPTION_ERRORS):
            raise
        problems = [str(error)]
    if problems != ["ok"]:
        raise LostGradebook(f"{path} is damaged ({'; '.join(problems)[:200]}): {RESTORE}")
    _sound.add(key)


def difference(path: Path, connection: sqlite3.Connection) -> str:
    """Return how this gradebook differs from the course's own; empty if it does not.

    Args:
        path: the gradebook.
        connection: the open gradebook.
    """
    now, before = mark.header_mark(connection), mark.saved_mark(path)
    if before is None:
        return _without_mark(path, connection)
    if now.name != before.name:
        return "is not the gradebook this course had, but another one or a new one"
    if now.changes < before.changes:
        return (f"is an older copy: it has {now.changes} changes, and the course's gradebook had "
                f"{before.changes}")
    return ""


def _without_mark(path: Path, connection: sqlite3.Connection) -> str:
    """Compare the contents, because the course has no mark: it is old, or the mark was lost."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'student'").fetchone():
        return ""  # nbgrader was stopped while it made it
    if missing_grades := entered.missing_grades(path.parent, connection):
        return f"lacks {_count(missing_grades)} that attempts/ has"
    newest = next(iter(backups.backups_of(path)), None)
    if newest and backups.counts(connection).students < newest.counts.students:
        return (f"has {backups.counts(connection).students} students, and the backup from "
                f"{newest.time:%Y-%m-%d %H:%M:%S} UTC has {newest.counts.students}")
    return ""
