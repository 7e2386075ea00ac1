"""Read a run's metrics.jsonl, which minimegatron/report/metrics.py writes.

The trainer names the file in its log. A job can write anything to the file, so every type is
checked.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence

FILE_LINE = re.compile(r"> writing metrics of run (\S+) to (/.+\.jsonl)$")
INCOMPLETE = "WARNING: metrics of run "  # the disk was full, so the log has more than the file
MAX_SIZE = 2**26  # bytes that are read, at the end of a file


def read_for_log(lines: Sequence[str]) -> list[dict[str, object]] | None:
    """Return the objects of the runs that a log names, in the order in which they were written.

    Returns None if the log names no file, or if a file is incomplete or unreadable. Only the log's
    own lines can be used then.
    """
    files = [match.groups() for line in lines if (match := FILE_LINE.search(line))]
    if not files or any(INCOMPLETE in line for line in lines):
        return None
    records = []
    for run, path in files:
        try:
            text = _tail(path)
        except OSError:
            return None
        objects = [_object(line) for line in text.splitlines() if run.encode() in line]
        records += [one for one in objects if one is not None and one.get("run") == run]
    return records


def _tail(path: str) -> bytes:
    """Return the last MAX_SIZE bytes of a regular file. Raises OSError."""
    # Opening a named pipe would wait for its writer.
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        file.seek(max(0, status.st_size - MAX_SIZE))
        return file.read(MAX_SIZE)


def _object(line: bytes) -> dict[str, object] | None:
    """Return the object of a line, with its NaN and infinity values; None if it has no object."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):  # truncated, or not written by the trainer
        return None
    if not isinstance(fields, dict):
        return None
    non_finite = fields.get("non_finite")
    for name in non_finite if isinstance(non_finite, dict) else ():
        if non_finite[name] in ("nan", "inf", "-inf"):
            fields[name] = float(non_finite[name])
    return fields


def number(value: object) -> float | None:
    """Return a number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def integer(value: object) -> int | None:
    """Return an integer, and None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
