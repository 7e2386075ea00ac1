"""Describe one program of a cluster that the supervisor keeps running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Daemon:
    """One program to keep running.

    Attributes:
        name: its name in logs.
        command: the program's path and arguments.
        node: the node that it runs on; None for the login node.
        environment: further variables.
        is_up: returns whether the next program may start; None if it need not wait.
        prepare: is called once the program is up, before the next one starts.
        pid: its process ID; None while it does not run.
        stopped: the user killed it with `lab cluster node`, so it is not restarted.
        failures: how often it ended in a row, shortly after its start.
        started_at: when it was last started, on the monotonic clock.
        retry_at: when it may be restarted, on the monotonic clock.
    """

    name: str
    command: list[str]
    node: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    is_up: Callable[[], bool] | None = None
    prepare: Callable[[], None] | None = None
    pid: int | None = None
    stopped: bool = False
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
