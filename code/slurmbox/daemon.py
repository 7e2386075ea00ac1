"""One program that a cluster consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Daemon:
    """One program to keep running."""

    name: str
    command: list[str]
    node: str | None = None  # the node it runs on; None is the login node
    environment: dict[str, str] = field(default_factory=dict)
    is_up: Callable[[], bool] | None = None  # what the next one in order waits for
    prepare: Callable[[], None] | None = None  # once it is up, before the next one
    pid: int | None = None
    stopped: bool = False  # on purpose, for a lesson
    failures: int = 0
    started_at: float = 0.0
    retry_at: float = 0.0


def listening(port: int) -> bool:
    """Return whether a TCP port is in use, without connecting (which daemons log as an error)."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                return True
    return False
