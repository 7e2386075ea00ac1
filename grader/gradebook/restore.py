"""Bring a gradebook back from a copy, or accept the one that is there.

Afterwards the records in attempts/ are compared with it: whatever it lacks, or has of an earlier
version, is ungraded until `lab grade` enters it again, from results/ where the result still is.
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
from grader.course.record import Record
from grader.gradebook import backups, byhand, entered, extensions, guard, mark, records
from grader.gradebook.backups import Backup
from grader.gradebook.faults import StorageFault, explained, holders
from labcore.errors import LabError

REASON = "the gradebook was restored: grade it again"


@dataclass(frozen=True)
class Restored:
    """The outcome of a restore."""

    backup: Backup
    aside: list[Path]  # the files that were in the way
    again: list[entered.Key]  # (lab, student) of what has to be entered again
    skipped: list[Path]  # newer backups, which are damaged


def path_of(course: Course) -> Path:
    """Return the gradebook's file. Raises LabError if it is in a database server."""
    url = records.database(course.settings(), course)
    path = mark.sqlite_file(url)
    if path is None:
        raise LabError(f"the gradebook is in a database server ({url.partition(':')[0]}): back it "
                       "up and restore it with the server's own commands")
    return path


@contextlib.contextmanager
def alone(course: Course, path: Path) -> Iterator[None]:
    """Lock the course. Raises LabError while another command or formgrader uses the gradebook."""
    with course.held(), _without_formgrader(course):
        if found := holders(path):
            raise LabError(f"{path} is in use by {'; '.join(found)}: close it first")
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
    """Also lets SQLite roll back what a killed process left unfinished."""
    try:
        with explained(path), contextlib.closing(mark.connect(path)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
    except StorageFault as error:
        if "is locked" in str(error):
            raise


def restore(course: Course, source: Path | None = None) -> Restored:
    """Put a copy in the gradebook's place; what is there is kept beside it.

    Args:
        course: the course folder.
        source: the copy; by default the newest backup that is sound.

    Raises LabError when there is no sound copy, or something else uses the gradebook.
    """
    path = path_of(course)
    with alone(course, path):
        backup = _given(source) if source else _newest(path)
        before, unfinished = mark.noted(path), path.with_name(f".{path.name}.restored")
        unfinished.unlink(missing_ok=True)
        with contextlib.closing(mark.connect(backup.path)) as connection:
            stamp = mark.Mark(before.name if before else backup.mark.name or mark.new_name(),
                              max(before.changes if before else 0, backup.mark.changes) + 1)
            backups.copied(connection, unfinished, stamp)
        aside = _put(unfinished, path)
        mark.note(path, stamp)
        again = reconcile(course, backup.time)
        backups.back_up(path)
    skipped = [] if source else [copy for copy in backups.damaged(path)
                                 if copy.name > backup.path.name]
    return Restored(backup, aside, again, skipped)


def _given(source: Path) -> Backup:
    if not source.is_file():
        raise LabError(f"--from {source}: there is no such file; `lab gradebook backups` lists the "
                       "backups")
    time = datetime.datetime.fromtimestamp(source.stat().st_mtime, datetime.UTC)
    try:
        return backups.read(source, time, whole=True)
    except sqlite3.Error as error:
        raise LabError(f"--from {source} is no gradebook or damaged ({error}); "
                       "`lab gradebook backups` lists the backups") from error


def _newest(path: Path) -> Backup:
    for backup in backups.listed(path):
        with contextlib.suppress(sqlite3.Error, LabError):
            return backups.read(backup.path, backup.time, whole=True)
    raise LabError(f"{path.parent / backups.FOLDER} has no backup that is sound: give a copy of "
                   "your own with --from FILE; without any, `lab gradebook accept` starts a new "
                   "gradebook, and `lab grade --all` enters the grades again from results/, but "
                   "not the roster or what was entered by hand")


def _put(unfinished: Path, path: Path) -> list[Path]:
    """Rename the copy into place; what was there, its journal included, moves aside."""
    time = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = []
    for ending in ("-journal", "-wal", "-shm", ""):
        old = path.with_name(path.name + ending)
        if not os.path.lexists(old):
            continue
        kept = path.with_name(f"{path.name}.before-{time}{ending}")
        if ending == "" and path.is_file() and not path.is_symlink():
            _second_name(path, kept)
        else:
            old.rename(kept)
        aside.append(kept)
    unfinished.replace(path)
    backups.sync(path.parent)
    return aside


def _second_name(path: Path, kept: Path) -> None:
    """A link, where the file system has links, so that there is a gradebook at every moment."""
    try:
        os.link(path, kept)
    except OSError:
        path.rename(kept)


def accept(course: Course) -> tuple[backups.Counts | None, list[entered.Key]]:
    """Take the gradebook as it is for the course's: (what it holds, what to enter again). None:
    there is none, and the next command makes a new one. Raises LabError when it is damaged."""
    path = path_of(course)
    with alone(course, path):
        if guard.is_missing(path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        else:
            found = _given_whole(path)
            stamp = mark.Mark(found.mark.name or mark.new_name(), found.mark.changes + 1)
            with explained(path), contextlib.closing(mark.connect(path)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                mark.put_inside(connection, stamp)
                connection.execute("COMMIT")
            mark.note(path, stamp)
            again = reconcile(course, found.time)
            backups.back_up(path)
            return found.counts, again
        stamp = mark.Mark(mark.new_name(), 0)
        _make_empty(path, stamp)
        return None, reconcile(course, datetime.datetime.now(datetime.UTC))


def _given_whole(path: Path) -> Backup:
    if not path.is_file():
        raise LabError(f"{path} is no file: move it away, or `lab gradebook restore`")
    time = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
    with explained(path):
        return backups.read(path, time, whole=True)


def _make_empty(path: Path, stamp: mark.Mark) -> None:
    """A new database with nothing but its mark; nbgrader makes its tables."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        mark.put_inside(connection, stamp)
    mark.note(path, stamp)


def reconcile(course: Course, time: datetime.datetime) -> list[entered.Key]:
    """Make attempts/ agree with the gradebook: (lab, student) of what `lab grade` has to enter
    again.

    Args:
        course: the course folder, whose gradebook has just been put in place.
        time: when that gradebook was last current, for entries that do not say what they are of.
    """
    path = path_of(course)
    with contextlib.closing(mark.connect(path)) as connection:
        there = _held(connection)
    again = []
    with records.gradebook(course) as book:
        for submission, record in _records(course):
            has_scores = record.state == "graded" or bool(record.unscored)
            key = submission.key
            if has_scores and key in there and _same(record, there[key], time):
                continue
            if key in there:
                record = _detached(submission, book, there[key])
            elif not has_scores:
                continue
            if has_scores:
                record = replace(record, state="ungraded", reason=REASON, attempt="", unscored=[])
                again.append(key)
            submission.save(record)
        extensions.give_again(course, book, time)
    return again


def _held(connection: sqlite3.Connection) -> dict[entered.Key, tuple[str, str] | None]:
    has_tables = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE name = 'submitted_assignment'").fetchone()
    return entered.held(connection) if has_tables else {}


def _records(course: Course) -> Iterator[tuple[Submission, Record]]:
    for place in sorted((course.root / "attempts").glob("*/*.json")):
        submission = Submission(course, place.stem, place.parent.name)
        if submission.record and not place.name.startswith("."):
            yield submission, submission.record


def _same(record: Record, held: tuple[str, str] | None, time: datetime.datetime) -> bool:
    """Return whether the gradebook's scores belong to the record."""
    if held is not None:
        return held == (record.digest, record.attempt)
    with contextlib.suppress(ValueError):  # entered before the gradebook said what it was of
        return datetime.datetime.fromisoformat(record.at) <= time
    return False


def _detached(submission: Submission, book: Gradebook, held: tuple[str, str] | None) -> Record:
    """Take an earlier version's scores out of the gradebook. What a person had entered for it, and
    the extension, wait in the record, unless they are there already."""
    record = submission.record
    with contextlib.suppress(MissingEntry):
        found: dict[str, Any] = byhand.entered(book.find_submission(*submission.key))
        digests = {entry.get("digest") for entry in record.history}
        digest = held[0] if held else record.digest if digests <= {record.digest} else ""
        new = {name: value for name, value in found.items() if name not in record.set_aside}
        values = {name for name in new if name != "extension"}
        of = record.set_aside_of
        if values:
            waiting = set(record.set_aside) - {"extension"}
            of = digest if not waiting or of == digest else ""
        book.remove_submission(*submission.key)
        return replace(record, set_aside=record.set_aside | new, set_aside_of=of)
    return record
