"""Errors whose messages are meant for the user."""

from __future__ import annotations

import errno
import os

# Explanations of disk errors, by errno, as opposed to errors in the user's input.
NO_ROOM = {errno.ENOSPC: "does not fit on the disk", errno.EDQUOT: "exceeds your disk quota",
           errno.EFBIG: "exceeds the file size limit", errno.EROFS: "is on a read-only file system"}


class LabError(Exception):
    """An error that the user can fix; it names the flag or file, the value, and the nearest one.

    The `lab` command prints it as `lab: error: TEXT` and exits with 1.
    """


def error_text(error: Exception) -> str:
    """Return an error's text; for a full disk, also the file concerned and what to do."""
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        return str(error)
    return (f"{error.filename or 'a file'} {NO_ROOM[error.errno]} ({os.strerror(error.errno)}): "
            "free some space, then run the command again; no file was left incomplete")
