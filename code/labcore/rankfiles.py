"""Read a rank's status file (see minimegatron/report/status.py), even if a job corrupted it."""

from __future__ import annotations

import json
from pathlib import Path

MAX_SIZE = 2**16  # bytes; the trainer writes about a thousand
ELSEWHERE = "elsewhere"  # stands for a /proc if the processes are in other containers
MAX_INTEGER = 2**53  # no number of bytes, iterations, or processes is larger


def rank_number(path: Path) -> int | None:
    """Return the rank in a file's name, or None if it is not the name of a status file."""
    name = path.stem
    is_rank = path.suffix == ".json" and name.isascii() and name.isdigit() and len(name) < 10
    return int(name) if is_rank else None


def read(path: Path) -> dict | None:
    """Return the file's fields, whose values may have any type, or None if it has none."""
    try:
        if not path.is_file():  # reading a named pipe would never end
            return None
        with open(path, "rb") as file:
            data = file.read(MAX_SIZE + 1)
        fields = json.loads(data.decode(errors="replace")) if len(data) <= MAX_SIZE else None
    except (OSError, ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
