"""The CPU time of a lab, whatever else runs on the machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

EVERY = 0.3  # seconds: so much of a process's end is not seen
TICKS = os.sysconf("SC_CLK_TCK")  # per second, in which Linux counts CPU time
LOOKS = 5  # for which a process without the variable is looked at: it may be about to exec


class Spent:
    """CPU seconds, by process, of all that runs with this workspace as its LAB_HOME: a notebook's
    kernel, its commands, and the ranks of its jobs."""

    def __init__(self, home: Path) -> None:
        self.mark = f"\0LAB_HOME={home}\0".encode()
        self.looks: dict[int, int] = {}  # by process, of those without the variable
        self.by_process: dict[tuple[int, int], float] = {}

    @property
    def seconds(self) -> float:
        return sum(self.by_process.values())

    def look(self) -> None:
        there = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        self.looks = {pid: self.looks.get(pid, 0) for pid in there}
        for pid in there:
            if not self._is_of_lab(pid):
                continue
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                user, system, started = int(fields[11]), int(fields[12]), int(fields[19])
                self.by_process[pid, started] = (user + system) / TICKS

    def _is_of_lab(self, pid: int) -> bool:
        """Return whether a process has the variable in its environment."""
        if self.looks[pid] > LOOKS:
            return False
        with contextlib.suppress(OSError):
            if self.mark in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                self.looks[pid] = 0
                return True
        self.looks[pid] += 1
        return False


@contextlib.contextmanager
def watching(home: Path) -> Iterator[Spent]:
    """Count within this block; not what ran before it."""
    spent, over = Spent(home), threading.Event()
    spent.look()
    before = dict(spent.by_process)

    def watch() -> None:
        while not over.wait(EVERY):
            spent.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield spent
    finally:
        over.set()
        thread.join()
        spent.look()
        for key, seconds in before.items():
            spent.by_process[key] -= seconds
