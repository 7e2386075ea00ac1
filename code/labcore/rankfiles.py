"""Read a rank's status file (see minimegatron/logging/status.py), whatever a job wrote to it."""

from __future__ import annotations

import json
from pathlib import Path

LARGEST = 2**16  # bytes; the trainer's have about one thousand
ELSEWHERE = "elsewhere"  # in place of a /proc: the processes are in other containers
WHOLE = 2**53  # no count of bytes, iterations or processes is larger


def number_of(path: Path) -> int | None:
    """The rank in the file's name; None where the name is no rank's."""
    name = path.stem
    is_rank = path.suffix == ".json" and name.isascii() and name.isdigit() and len(name) < 10
    return int(name) if is_rank else None


def read(path: Path) -> dict | None:
    """The file's fields, of any type; None where there are none."""
    try:
        if not path.is_file():  # a pipe would never end
            return None
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        fields = json.loads(data.decode(errors="replace")) if len(data) <= LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
