"""Detect deadlocks: ranks publish what they wait for in shared memory, which their manager reads.

A rank that waits for another rank writes that in its row of the board. Time alone does not make a
deadlock: every rank that is still running must wait for others, none of their threads may be
runnable, and neither may have changed for a while. So a rank that computes, sleeps, or waits for a
core on a busy machine never counts as hanging.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROW = 256  # bytes per rank
HEADER = struct.Struct("=QH")  # the number of changes to the row; the length of its text, in bytes
ROUNDS = 5  # in each round, every thread must be seen asleep
ASLEEP = "SI"  # thread states in /proc that mean waiting for an event


class WaitBoard:
    """Shared memory with one row per rank. Create it before forking the ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self._memory = ranks, mmap.mmap(-1, ROW * ranks)

    def write(self, rank: int, text: str) -> None:
        """Set what a rank waits for.

        Args:
            rank: the rank.
            text: such as "recv from rank 3"; empty if the rank does not wait.
        """
        content = text.encode()[:ROW - HEADER.size]
        changes, _ = HEADER.unpack_from(self._memory, ROW * rank)
        start = ROW * rank + HEADER.size
        self._memory[start:start + len(content)] = content
        HEADER.pack_into(self._memory, ROW * rank, changes + 1, len(content))

    def read(self, rank: int) -> tuple[int, str]:
        """Return how many times a rank's row has changed, and what the rank waits for."""
        changes, size = HEADER.unpack_from(self._memory, ROW * rank)
        start = ROW * rank + HEADER.size
        return changes, self._memory[start:start + size].decode(errors="replace")


_rows: list[tuple[WaitBoard, int]] = []  # this process's board and rank; empty if it is not a rank


def use_row(board: WaitBoard, rank: int) -> None:
    """Make `waiting` write to this rank's row from now on.

    Args:
        board: the board that the manager reads.
        rank: this process's rank.
    """
    _rows[:] = [(board, rank)]


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Publish that this rank waits for others, for the duration of the context.

    Args:
        what: a description for people, such as "recv from rank 3".
    """
    for board, rank in _rows:
        board.write(rank, what)
    try:
        yield
    finally:
        for board, rank in _rows:
            board.write(rank, "")


class DeadlockDetector:
    """Detects that all running ranks wait for one another."""

    def __init__(self, board: WaitBoard, seconds: float) -> None:
        """Args:
            board: the ranks' board.
            seconds: the time without any change after which the ranks are deadlocked.
        """
        self.board, self.seconds = board, seconds
        self._before: object = None
        self._since, self._rounds = 0.0, 0
        self._unseen: set[Path] = set()  # threads not yet seen asleep in this round

    def is_deadlocked(self, running: Mapping[int, int]) -> bool:
        """Return whether the ranks are deadlocked. Call it repeatedly.

        Args:
            running: process IDs by rank, for the ranks that have neither returned nor failed.
        """
        rows = {rank: self.board.read(rank) for rank in running}
        waits = bool(rows) and all(text for _, text in rows.values())
        try:
            now = rows, [context_switches(process) for process in running.values()]
            if not waits or now != self._before:
                self._before, self._since, self._rounds = now, time.monotonic(), 0
                self._unseen = set()
                return False
            self._check_threads(running.values())
        except OSError:  # a rank is ending
            self._before = None
            return False
        return self._rounds >= ROUNDS and time.monotonic() - self._since >= self.seconds

    def _check_threads(self, processes: Iterable[int]) -> None:
        """Count a round once every thread has been seen asleep."""
        if not self._unseen:
            self._unseen = {thread for process in processes
                            for thread in Path(f"/proc/{process}/task").iterdir()}
        self._unseen -= {thread for thread in self._unseen if is_asleep(thread)}
        self._rounds += not self._unseen


def context_switches(process: int) -> list[str]:
    """Return the context-switch counts of a process's main thread, one line per kind."""
    status = Path(f"/proc/{process}/task/{process}/status").read_text()
    return [line for line in status.splitlines() if "ctxt_switches" in line]


def is_asleep(thread: Path) -> bool:
    """Return whether a thread waits for an event or has ended, given its folder in /proc."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in ASLEEP
    except OSError:
        return True
