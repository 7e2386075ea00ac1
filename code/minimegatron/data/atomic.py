"""Atomic files: complete or absent."""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import psutil

_serial = itertools.count()


class AtomicFile:
    """A binary file written beside `target` under a temporary name.

    Write to `file`; then call `finish` and `rename`, which replaces `target`, or `discard`, which
    leaves `target` as it was. Raises OSError as `open` does.
    """

    def __init__(self, target: Path):
        self.target = target
        remove_leftovers(target)
        # Unique to this object, so that two jobs which build the same file at the same time do
        # not write into each other's; `remove_leftovers` reads the process id from it.
        name = f"{_temporary_prefix(target)}{os.getpid()}.{next(_serial)}.tmp"
        self.temporary = target.with_name(name)
        self.file: BinaryIO = open(self.temporary, "wb")  # noqa: SIM115 (closed by finish/discard)

    def finish(self) -> None:
        """Sync the file to the disk; it still has its temporary name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    def rename(self) -> None:
        os.replace(self.temporary, self.target)

    def discard(self) -> None:
        try:
            self.file.close()
        except OSError:  # a full disk refuses the last buffer once more
            pass
        finally:
            self.temporary.unlink(missing_ok=True)


def _temporary_prefix(target: Path) -> str:
    """Return the prefix of the names of this host's temporary files of `target`."""
    return f".{target.name}.{socket.gethostname()}."


def remove_leftovers(target: Path) -> None:
    """Remove temporary files of `target` whose writer on this host is no longer alive."""
    if not target.parent.is_dir():
        return
    pattern = re.compile(re.escape(_temporary_prefix(target)) + r"(\d+)\.\d+\.tmp$")
    for name in os.listdir(target.parent):
        match = pattern.match(name)
        if match and not psutil.pid_exists(int(match[1])):
            (target.parent / name).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut (a no-op where folders cannot be opened)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:  # some network file systems refuse to sync folders
        pass
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(target: Path) -> Iterator[BinaryIO]:
    """`with atomic_file(path) as file:` write bytes; `path` appears, complete, at the end."""
    atomic = AtomicFile(target)
    try:
        yield atomic.file
        atomic.finish()
        atomic.rename()
    except BaseException:
        atomic.discard()
        raise
    sync_folder(target.parent)
