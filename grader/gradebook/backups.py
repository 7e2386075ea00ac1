"""Back up the gradebook to `backups/` beside it, before and after each command that writes to it.

SQLite's backup API makes the copies, so no other process has to stop, and only if the gradebook has
changed since the last copy. The newest ten copies stay, and the last one of each of the seven
newest days.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.gradebook import mark
from grader.gradebook.faults import explained
from labcore.errors import LabError

FOLDER = "backups"
NEWEST, DAYS = 10, 7
NAME = re.compile(r"gradebook-(\d{8}T\d{6}\.\d{6})Z\.db")
TIME = "%Y%m%dT%H%M%S.%f"
TABLES = {"student", "assignment", "submitted_assignment", "grade", "comment"}
COUNTS = ("SELECT (SELECT count(*) FROM student), (SELECT count(*) FROM submitted_assignment), "
          "(SELECT count(*) FROM grade WHERE manual_score IS NOT NULL OR extra_credit IS NOT NULL)")


@dataclass(frozen=True)
class EntryCounts:
    """The numbers of entries in a gradebook."""

    students: int
    grades: int  # submissions with scores
    by_hand: int  # scores that a person entered

    def __str__(self) -> str:
        return (f"{self.students} students, {self.grades} grades, {self.by_hand} scores entered "
                "by hand")


@dataclass(frozen=True)
class Backup:
    """One copy that can be restored."""

    path: Path
    time: datetime.datetime  # UTC
    mark: mark.Mark
    counts: EntryCounts


def counts(connection: sqlite3.Connection) -> EntryCounts:
    return EntryCounts(*connection.execute(COUNTS).fetchone())


def backups_of(path: Path) -> list[Backup]:
    """Return the sound backups of the gradebook at `path`, newest first."""
    sound_copies = []
    for copy in sorted((path.parent / FOLDER).glob("gradebook-*.db"), reverse=True):
        if match := NAME.fullmatch(copy.name):
            with contextlib.suppress(sqlite3.Error, OSError, LabError):
                sound_copies.append(read(copy, datetime.datetime.strptime(match[1], TIME)))
    return sound_copies


def damaged_backups(path: Path) -> list[Path]:
    """Return the backups that cannot be restored."""
    sound = {backup.path for backup in backups_of(path)}
    return [copy for copy in sorted((path.parent / FOLDER).glob("gradebook-*.db"))
            if copy not in sound]


def read(copy: Path, time: datetime.datetime, thorough: bool = False) -> Backup:
    """Read a copy of a gradebook.

    Args:
        copy: the file.
        time: when it was made, UTC.
        thorough: also check every page and index, which takes longer.

    Raises sqlite3.Error, or LabError when it is not a gradebook.
    """
    with contextlib.closing(mark.connect(copy)) as connection:
        if thorough and (problems := connection.execute("PRAGMA integrity_check(3)").fetchall()
                         ) != [("ok",)]:
            raise LabError(f"{copy} is damaged ({problems[0][0][:200]})")
        tables = {name for name, in connection.execute("SELECT name FROM sqlite_master")}
        if not tables.issuperset(TABLES):
            raise LabError(f"{copy} is not a gradebook: it has no table "
                           f"{min(TABLES - tables)}")
        return Backup(copy, time.replace(tzinfo=datetime.UTC), mark.header_mark(connection),
                      counts(connection))


def back_up(path: Path) -> Path | None:
    """Copy the gradebook at `path` and return the copy; None if there is none or nothing has
    changed.

    Raises LabError when it cannot be copied; no partial file stays.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return None
    with explained(path), contextlib.closing(mark.connect(path)) as connection:
        now, last = mark.header_mark(connection), _last(path)
        if last and now.name and last == now:
            return None
        folder = path.parent / FOLDER
        folder.mkdir(mode=0o770, exist_ok=True)
        time = datetime.datetime.now(datetime.UTC)
        copy = copy_database(connection, folder / f"gradebook-{time:{TIME}}Z.db")
    rotate(folder)
    return copy


def _last(path: Path) -> mark.Mark | None:
    """Return the mark of the newest backup; None if there is none or it is damaged."""
    for copy in sorted((path.parent / FOLDER).glob("gradebook-*.db"), reverse=True)[:1]:
        with (contextlib.suppress(sqlite3.Error),
              contextlib.closing(mark.connect(copy)) as connection):
            return mark.header_mark(connection)
    return None


def copy_database(connection: sqlite3.Connection, target: Path,
                  stamp: mark.Mark | None = None) -> Path:
    """Copy an open gradebook to `target` atomically, and check the copy. Raises LabError.

    Args:
        connection: the gradebook.
        target: path of the copy, which only its owner can read.
        stamp: the mark to put into the copy; by default it keeps its own.
    """
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with explained(target):
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with contextlib.closing(mark.connect(unfinished)) as copy:
                connection.backup(copy)
                if stamp:
                    mark.write_header_mark(copy, stamp)
                if copy.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                    raise LabError(f"the copy {target} is damaged: check the disk")
            with open(unfinished, "rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(target)
            sync(target.parent)
    finally:
        for ending in ("", "-journal"):
            unfinished.with_name(unfinished.name + ending).unlink(missing_ok=True)
    return target


def sync(folder: Path) -> None:
    """Wait until a rename in `folder` is on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def rotate(folder: Path) -> None:
    """Remove backups that are neither among the newest nor the last one of a recent day."""
    copies = sorted((copy for copy in folder.glob("gradebook-*.db") if NAME.fullmatch(copy.name)),
                    reverse=True)
    days: dict[str, Path] = {}
    for copy in copies:
        days.setdefault(copy.name[:len("gradebook-20260101")], copy)
    kept = {*copies[:NEWEST], *list(days.values())[:DAYS]}
    for copy in copies:
        if copy not in kept:
            copy.unlink(missing_ok=True)


@contextlib.contextmanager
def backed_up(path: Path) -> Iterator[None]:
    """Back up the gradebook before and after the block, even after an error."""
    back_up(path)
    try:
        yield
    except BaseException:
        with contextlib.suppress(LabError, OSError):
            back_up(path)
        raise
    back_up(path)
