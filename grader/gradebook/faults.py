"""Explain errors of SQLite and the disk in one sentence that says what to do."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from labcore.errors import NO_ROOM, LabError, error_text

SECONDS_TO_WAIT = 10.0  # for another process to release the gradebook
CORRUPTION_ERRORS = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
RESTORE = "`lab gradebook restore` brings back the last backup (`lab gradebook backups` lists them)"


class StorageFault(LabError):
    """Raised when the gradebook or the disk failed, which does not reflect on any submission."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes: nbgrader wraps SQLAlchemy's errors, which wrap SQLite's."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        original = getattr(error, "orig", None)
        if isinstance(original, BaseException):
            yield original
        error = error.__cause__ or error.__context__


def fault_of(error: BaseException, path: Path) -> StorageFault | None:
    """Return the error as a storage fault; None if it has another cause.

    Args:
        error: the error.
        path: the gradebook.
    """
    for one in causes(error):
        if isinstance(one, StorageFault):
            return one
        if isinstance(one, sqlite3.DatabaseError) and not isinstance(one, sqlite3.IntegrityError):
            return StorageFault(description(one, path))
        if isinstance(one, OSError) and one.errno in NO_ROOM:
            return StorageFault(error_text(OSError(one.errno, one.strerror,
                                                one.filename or str(path))))
    return None


def description(error: sqlite3.Error, path: Path) -> str:
    """Return a sentence that explains an SQLite error and what to do about it.

    Args:
        error: the error.
        path: the gradebook.
    """
    name, text = getattr(error, "sqlite_errorname", "") or "", str(error)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "is locked" in text:
        who = "; ".join(holders(path)) or "a process that cannot be seen from here"
        return (f"{path} is locked, and still was after {SECONDS_TO_WAIT:.0f} s. It is held by "
                f"{who}. Close it, then run the command again")
    if name.startswith(CORRUPTION_ERRORS) or "malformed" in text or "not a database" in text:
        return f"{path} is damaged ({text}): {RESTORE}"
    if name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR") or "is full" in text:
        return (f"{path} cannot be written ({text}): check for a full disk, a quota, or a failing "
                "disk, make room, then run the command again; the last change was rolled back")
    if name.startswith("SQLITE_READONLY") or "readonly" in text:
        return (f"{path} cannot be written: make the file and its folder {path.parent} writable "
                "for your user, then run the command again")
    return f"{path} cannot be used ({text})"


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise StorageFault in place of errors of SQLite, SQLAlchemy, and nbgrader about `path`."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        fault = fault_of(error, path)
        if fault is None:
            raise
        raise fault from error


def holders(path: Path) -> list[str]:
    """Return the other processes that have the gradebook open, as "process 123 (COMMAND)"."""
    try:
        gradebook_status = path.stat()
    except OSError:
        return []
    processes = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if any(_same(link, gradebook_status) for link in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(
                    errors="replace").strip()
                processes.append(f"process {process.name} ({words[:100]})")
    return processes


def _same(link: Path, gradebook_status: os.stat_result) -> bool:
    try:
        return os.path.samestat(link.stat(), gradebook_status)
    except OSError:
        return False
