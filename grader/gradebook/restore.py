"""Restore the gradebook from a copy, or accept the current one.

Afterwards the records in attempts/ are compared with it. Whatever the gradebook does not have, or
has for an earlier version, is ungraded until `lab grade` enters it again, from results/ if the
result still exists.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry

from grader.course import Course, Submission
from grader.course.record import GradingRecord
from grader.gradebook import backups, byhand, entered, extensions, guard, mark, records
from grader.gradebook.backups import Backup
from grader.gradebook.faults import StorageFault, explained, holders
from labcore.errors import LabError

REASON = "the gradebook was restored: grade it again"


@dataclass(frozen=True)
class Restored:
    """The outcome of a restore.

    Attributes:
        aside: the previous files, renamed.
        again: (lab, student) of the grades that must be entered again.
        skipped: newer backups that are damaged.
    """

    backup: Backup
    aside: list[Path]
    again: list[entered.Key]
    skipped: list[Path]


def path_of(course: Course) -> Path:
    """Return the gradebook's file. Raises LabError if it is in a database server."""
    url = records.database_url(course.settings(), course)
    path = mark.sqlite_file(url)
    if path is None:
        raise LabError(f"the gradebook is in a database server ({url.partition(':')[0]}): back it "
                       "up and restore it with the server's own commands")
    return path


@contextlib.contextmanager
def exclusive_access(course: Course, path: Path, command: str) -> Iterator[None]:
    """Lock the course.

    Args:
        course: the course.
        path: the gradebook.
        command: the command that needs it.

    Raises LabError while another command or formgrader uses the gradebook.
    """
    with course.locked(command), course.entering(), _without_formgrader(course):
        if processes := holders(path):
            raise LabError(f"{path} is in use by {'; '.join(processes)}: close it first")
        if path.is_file():
            _require_unlocked(path)
        yield


@contextlib.contextmanager
def _without_formgrader(course: Course) -> Iterator[None]:
    folder = course.root / ".cluster"
    folder.mkdir(exist_ok=True)
    with open(folder / "start.lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise LabError(f"formgrader is running ({lock.read().strip()}): stop it with Ctrl-C "
                           "where it was started, then run the command again") from error
        yield


def _require_unlocked(path: Path) -> None:
    """Raise StorageFault while the gradebook is locked; let SQLite roll back unfinished changes."""
    try:
        with explained(path), contextlib.closing(mark.connect(path)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
    except StorageFault as error:
        if "is locked" in str(error):
            raise


def restore(course: Course, source: Path | None = None) -> Restored:
    """Replace the gradebook with a copy, and keep the previous file beside it.

    Args:
        course: the course folder.
        source: the copy; by default the newest sound backup.

    Raises LabError when there is no sound copy, or something else uses the gradebook.
    """
    path = path_of(course)
    with exclusive_access(course, path, "lab gradebook restore"):
        backup = _read_source(source) if source else _newest_backup(path)
        before, unfinished = mark.saved_mark(path), path.with_name(f".{path.name}.restored")
        unfinished.unlink(missing_ok=True)
        with contextlib.closing(mark.connect(backup.path)) as connection:
            stamp = mark.Mark(before.name if before else backup.mark.name or mark.new_name(),
                              max(before.changes if before else 0, backup.mark.changes) + 1)
            backups.copy_database(connection, unfinished, stamp)
        aside = _put(unfinished, path)
        mark.save_mark(path, stamp)
        again = reconcile(course, backup.time)
        backups.back_up(path)
    skipped = [] if source else [copy for copy in backups.damaged_backups(path)
                                 if copy.name > backup.path.name]
    return Restored(backup, aside, again, skipped)


def _read_source(source: Path) -> Backup:
    if not source.is_file():
        raise LabError(f"--from {source}: there is no such file; `lab gradebook backups` lists the "
                       "backups")
    time = datetime.datetime.fromtimestamp(source.stat().st_mtime, datetime.UTC)
    try:
        return backups.read(source, time, thorough=True)
    except sqlite3.Error as error:
        raise LabError(f"--from {source} is damaged or not a gradebook ({error}); "
                       "`lab gradebook backups` lists the backups") from error


def _newest_backup(path: Path) -> Backup:
    for backup in backups.backups_of(path):
        with contextlib.suppress(sqlite3.Error, LabError):
            return backups.read(backup.path, backup.time, thorough=True)
    raise LabError(f"{path.parent / backups.FOLDER} has no backup that is sound: give a copy of "
                   "your own with --from FILE; without any, `lab gradebook accept` starts a new "
                   "gradebook, and `lab grade --all` enters the grades again from results/, but "
                   "not the roster or what was entered by hand")


def _put(unfinished: Path, path: Path) -> list[Path]:
    """Rename the copy into place, and the previous file and its journal out of the way."""
    time = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = []
    for ending in ("-journal", "-wal", "-shm", ""):
        old = path.with_name(path.name + ending)
        if not os.path.lexists(old):
            continue
        kept = path.with_name(f"{path.name}.before-{time}{ending}")
        if ending == "" and path.is_file() and not path.is_symlink():
            _link_or_rename(path, kept)
        else:
            old.rename(kept)
        aside.append(kept)
    unfinished.replace(path)
    backups.sync(path.parent)
    return aside


def _link_or_rename(path: Path, kept: Path) -> None:
    """Link the file if possible, so that there is a gradebook at every moment; else rename it."""
    try:
        os.link(path, kept)
    except OSError:
        path.rename(kept)


def accept(course: Course) -> tuple[backups.EntryCounts | None, list[entered.Key]]:
    """Accept the current gradebook as the course's own.

    Returns (its counts, grades to enter again); the counts are None if there is no gradebook, and
    the next command then creates a new one. Raises LabError when it is damaged.
    """
    path = path_of(course)
    with exclusive_access(course, path, "lab gradebook accept"):
        if guard.is_missing(path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        else:
            current = _read_current(path)
            stamp = mark.Mark(current.mark.name or mark.new_name(), current.mark.changes + 1)
            with explained(path), contextlib.closing(mark.connect(path)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                mark.write_header_mark(connection, stamp)
                connection.execute("COMMIT")
            mark.save_mark(path, stamp)
            again = reconcile(course, current.time)
            backups.back_up(path)
            return current.counts, again
        stamp = mark.Mark(mark.new_name(), 0)
        _make_empty(path, stamp)
        return None, reconcile(course, datetime.datetime.now(datetime.UTC))


def _read_current(path: Path) -> Backup:
    if not path.is_file():
        raise LabError(f"{path} is not a file: move it away, or `lab gradebook restore`")
    time = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
    with explained(path):
        return backups.read(path, time, thorough=True)


def _make_empty(path: Path, stamp: mark.Mark) -> None:
    """Create a database with nothing but its mark; nbgrader creates the tables."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        mark.write_header_mark(connection, stamp)
    mark.save_mark(path, stamp)


def reconcile(course: Course, time: datetime.datetime) -> list[entered.Key]:
    """Make attempts/ agree with the gradebook; return (lab, student) of the grades to enter again.

    Args:
        course: the course folder, whose gradebook was just replaced.
        time: when that gradebook was last current, for entries without a version.
    """
    path = path_of(course)
    with contextlib.closing(mark.connect(path)) as connection:
        entries = _entered_versions(connection)
    again = []
    with records.gradebook(course) as book:
        for submission, record in _records(course):
            has_scores = record.state == "graded" or bool(record.unscored)
            key = submission.key
            if has_scores and key in entries and _same(record, entries[key], time):
                continue
            if key in entries:
                record = _detached(submission, book, entries[key])
            elif not has_scores:
                continue
            if has_scores:
                record = replace(record, state="ungraded", reason=REASON, attempt="", unscored=[])
                again.append(key)
            submission.save(record)
        extensions.reapply(course, book, time)
    return again


def _entered_versions(connection: sqlite3.Connection) -> dict[entered.Key, tuple[str, str] | None]:
    has_tables = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'submitted_assignment'").fetchone()
    return entered.entered_versions(connection) if has_tables else {}


def _records(course: Course) -> Iterator[tuple[Submission, GradingRecord]]:
    for place in sorted((course.root / "attempts").glob("*/*.json")):
        submission = Submission(course, place.stem, place.parent.name)
        if submission.record and not place.name.startswith("."):
            yield submission, submission.record


def _same(record: GradingRecord, held: tuple[str, str] | None, time: datetime.datetime) -> bool:
    """Return whether the gradebook's scores belong to the record.

    Args:
        record: the record.
        held: the version in the gradebook.
        time: when the gradebook was last current.
    """
    if held is not None:
        return held == (record.digest, record.attempt)
    with contextlib.suppress(ValueError):  # entered before the gradebook said what it was of
        return datetime.datetime.fromisoformat(record.at) <= time
    return False


def _detached(submission: Submission, book: Gradebook,
              held: tuple[str, str] | None) -> GradingRecord:
    """Remove an earlier version's scores from the gradebook; return the record with the manual
    ones.
    """
    record = submission.record
    with contextlib.suppress(MissingEntry):
        entries: dict[str, Any] = byhand.entered_by_hand(book.find_submission(*submission.key))
        digests = {entry.get("digest") for entry in record.history}
        digest = held[0] if held else record.digest if digests <= {record.digest} else ""
        new = {name: value for name, value in entries.items() if name not in record.set_aside}
        values = {name for name in new if name != "extension"}
        of = record.set_aside_of
        if values:
            waiting = set(record.set_aside) - {"extension"}
            of = digest if not waiting or of == digest else ""
        book.remove_submission(*submission.key)
        return replace(record, set_aside=record.set_aside | new, set_aside_of=of)
    return record
