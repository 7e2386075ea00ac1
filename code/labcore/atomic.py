"""Files and links that are replaced in one step: complete or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from labcore.errors import LabError


def put_whole(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that it appears complete or not at all, even if the process is killed.

    Args:
        path: the file; its folder must exist.
        content: everything it is to hold.
        mode: its permissions, which no half-written copy exceeds either.

    Raises OSError that names the file, even if the disk is full.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.touch(mode | 0o200)  # writable until it is complete, even if `mode` is not
        unfinished.write_bytes(content)
        unfinished.chmod(mode)
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def put_link(link: Path, target: Path) -> None:
    """Make or replace a symbolic link. Raises OSError."""
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(link)


def point(link: Path, target: Path) -> None:
    """Make `link` point to `target` unless it does; classic scripts use $LAB_HOME/megatron.

    Raises LabError if a file or folder has the link's name.
    """
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    if link.exists() and not link.is_symlink():
        raise LabError(f"{link} is in the way: the course links it to {target}; move it elsewhere")
    put_link(link, target)
