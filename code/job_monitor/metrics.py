"""Figures of a run from its metrics.jsonl (see minimegatron/logging/metrics.py).

The trainer names the file in its log. The file belongs to a job, so nothing in it is trusted to
have the right type.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence

NAMED = re.compile(r"> writing metrics of run (\S+) to (/.+\.jsonl)$")
INCOMPLETE = "WARNING: metrics of run "  # the disk was full: the log has more
LARGEST = 2**26  # bytes that are read, at the end of a file


def of_log(lines: Sequence[str]) -> list[dict[str, object]] | None:
    """Return the objects of the runs that a log names, in the order in which they were written.

    Returns None if the log names no file, or if a file is incomplete or cannot be read: then the
    log is all there is.
    """
    named = [match.groups() for line in lines if (match := NAMED.search(line))]
    if not named or any(INCOMPLETE in line for line in lines):
        return None
    found = []
    for run, path in named:
        try:
            text = _tail(path)
        except OSError:
            return None
        objects = [_object(line) for line in text.splitlines() if run.encode() in line]
        found += [one for one in objects if one is not None and one.get("run") == run]
    return found


def _tail(path: str) -> bytes:
    """Return the last LARGEST bytes of a regular file. Raises OSError."""
    # Opening a named pipe would wait for its writer.
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "not a regular file")
        file.seek(max(0, about.st_size - LARGEST))
        return file.read(LARGEST)


def _object(line: bytes) -> dict[str, object] | None:
    """Return the object of a line, with NaN and infinity put back; None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # cut off, or not written by the trainer
        return None
    if not isinstance(found, dict):
        return None
    odd = found.get("non_finite")
    for name in odd if isinstance(odd, dict) else ():
        if odd[name] in ("nan", "inf", "-inf"):
            found[name] = float(odd[name])
    return found


def number(value: object) -> float | None:
    """Return a number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def whole(value: object) -> int | None:
    """Return an integer, and None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
