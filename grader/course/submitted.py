"""Read a submission: once, plain files only, within limits.

The bytes that are read are the bytes that are graded and whose digest is stored, even if the file
changes meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from grader.cleaning import line
from grader.course.reasons import NotANotebook, Unusable

LARGEST = 20_000_000  # bytes of a submitted notebook
MOST_ITEMS = 2_000_000  # commas and brackets in it: each may cost 100 bytes of memory when parsed
MOST_FILES = 500
MOST_TOGETHER = 100_000_000  # bytes of all files of a submission
MOST_DEPTH = 5  # folders in folders
NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LINKED = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)


def read(path: Path) -> bytes:
    """Return the notebook at submitted/STUDENT/LAB/LAB.ipynb. Raises Unusable."""
    opened: list[int] = []
    try:
        for name, flags in ((path.parents[2], os.O_RDONLY | os.O_CLOEXEC),
                            (path.parents[1].name, NO_LINK), (path.parents[0].name, NO_LINK)):
            opened.append(os.open(name, flags | os.O_DIRECTORY,
                                  **({"dir_fd": opened[-1]} if opened else {})))
        _require_plain_tree(opened[-1], MOST_DEPTH, [0, 0])
        return _content(opened[-1], path.name)
    except OSError as error:
        if error.errno in LINKED:
            raise _linked(path.parent.name) from error
        raise Unusable(f"it cannot be read: {error.strerror}") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _linked(name: str) -> Unusable:
    return Unusable(f"{line(name, 100)} is a link or a special file: only plain files are read")


def _require_plain_tree(folder: int, depth: int, seen: list[int]) -> None:
    """Raise Unusable where anything below is not a plain file or folder, or there is too much.

    Args:
        folder: descriptor of the folder.
        depth: the number of levels that are left.
        seen: files so far, bytes so far.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            seen[0] += 1
            seen[1] += status.st_size
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise _linked(entry.name)
            if seen[0] > MOST_FILES or seen[1] > MOST_TOGETHER or depth == 0:
                raise Unusable(f"it has more than {MOST_FILES} files, {MOST_TOGETHER / 1e6:.0f} MB "
                               f"or {MOST_DEPTH} folders in folders")
            if stat.S_ISDIR(status.st_mode):
                inner = os.open(entry.name, NO_LINK | os.O_DIRECTORY, dir_fd=folder)
                try:
                    _require_plain_tree(inner, depth - 1, seen)
                finally:
                    os.close(inner)


def _content(folder: int, name: str) -> bytes:
    try:
        descriptor = os.open(name, NO_LINK, dir_fd=folder)
    except FileNotFoundError as error:
        others = sorted(line(other, 60) for other in os.listdir(folder) if other.endswith(".ipynb"))
        raise Unusable(f"no {name} in it" + (f"; there is {', '.join(others[:5])}" if others
                                             else "")) from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable(f"no {name} in it; it is a folder" if stat.S_ISDIR(status.st_mode)
                           else str(_linked(name)))
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise NotANotebook(f"{name} has {status.st_size / 1e6:.0f} MB; at most {LARGEST / 1e6:.0f} "
                           "are read: clear its outputs")
    return content


def parse(content: bytes, name: str) -> Any:
    """Return the JSON in a notebook, whatever its structure.

    Args:
        content: the file.
        name: its name, for messages.

    Raises NotANotebook.
    """
    if sum(content.count(mark) for mark in (b",", b"[", b"{")) > MOST_ITEMS:
        raise NotANotebook(f"{name} is not a notebook: more than {MOST_ITEMS:,} items; "
                           "clear its outputs")
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotANotebook(f"{name} is not a notebook: {line(str(error), 200)}") from error
