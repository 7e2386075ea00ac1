"""Replace files and links in one step, so they are complete or not there at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from labcore.errors import LabError


def write_atomic(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that it appears complete or not at all, even if the process is killed.

    Args:
        path: the file; its folder must exist.
        content: the whole content.
        mode: the file's permissions; a partial copy never has more.

    Raises:
        OSError: the file cannot be written, for example on a full disk; it names the file.
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


def replace_link(link: Path, target: Path) -> None:
    """Create or replace a symbolic link in one step. Raises OSError."""
    unfinished = link.with_name(f".{link.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target)
    unfinished.replace(link)


def ensure_link(link: Path, target: Path) -> None:
    """Make `link` point to `target`, unless it already does.

    Raises:
        LabError: a file or folder has the link's name.
    """
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    if link.exists() and not link.is_symlink():
        raise LabError(f"{link} is in the way: the course links it to {target}; move it elsewhere")
    replace_link(link, target)
