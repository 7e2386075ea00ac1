"""What each rank waits for, in memory that its manager reads, and how to tell a deadlock from it.

A rank that waits for another one says so on its row of the board. The manager declares a deadlock
only where no clock decides it alone: every rank that still runs waits for others, none of their
threads is runnable, and neither has changed for a while. A rank that computes, sleeps, or lacks a
core on a busy machine is therefore never taken for one that hangs.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROW = 256  # bytes of a rank
HEADER = struct.Struct("=QH")  # how often the row has changed; bytes of text
ROUNDS = 5  # in each of which every thread must be seen asleep
ASLEEP = "SI"  # states of a thread, in /proc, that waits for an event


class Board:
    """A row of shared memory for each rank; make it before they are forked."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self._memory = ranks, mmap.mmap(-1, ROW * ranks)

    def write(self, rank: int, text: str) -> None:
        """Set what a rank waits for; an empty text: it does not wait."""
        content = text.encode()[:ROW - HEADER.size]
        changes, _ = HEADER.unpack_from(self._memory, ROW * rank)
        start = ROW * rank + HEADER.size
        self._memory[start:start + len(content)] = content
        HEADER.pack_into(self._memory, ROW * rank, changes + 1, len(content))

    def read(self, rank: int) -> tuple[int, str]:
        """Return how often a rank's row has changed, and what it waits for."""
        changes, size = HEADER.unpack_from(self._memory, ROW * rank)
        start = ROW * rank + HEADER.size
        return changes, self._memory[start:start + size].decode(errors="replace")


_mine: list[tuple[Board, int]] = []  # of this process, where it is a rank


def sit(board: Board, rank: int) -> None:
    """Have `waiting` write to this rank's row from now on."""
    _mine[:] = [(board, rank)]


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Declare, within the context, that this rank waits for others.

    Args:
        what: for people, such as "recv from rank 3".
    """
    for board, rank in _mine:
        board.write(rank, what)
    try:
        yield
    finally:
        for board, rank in _mine:
            board.write(rank, "")


class Stall:
    """Tells when all running ranks wait for each other."""

    def __init__(self, board: Board, seconds: float) -> None:
        """Args:
            board: the ranks' rows.
            seconds: for which nothing must have changed.
        """
        self.board, self.seconds = board, seconds
        self._before: object = None
        self._since, self._rounds = 0.0, 0
        self._unseen: set[Path] = set()  # threads that were not asleep yet in this round

    def found(self, running: Mapping[int, int]) -> bool:
        """Return whether the ranks wait for each other; call it again and again.

        Args:
            running: process ids by rank, of the ranks that have neither returned nor failed.
        """
        rows = {rank: self.board.read(rank) for rank in running}
        waits = bool(rows) and all(text for _, text in rows.values())
        try:
            now = rows, [switches(process) for process in running.values()]
            if not waits or now != self._before:
                self._before, self._since, self._rounds = now, time.monotonic(), 0
                self._unseen = set()
                return False
            self._look(running.values())
        except OSError:  # a rank is ending
            self._before = None
            return False
        return self._rounds >= ROUNDS and time.monotonic() - self._since >= self.seconds

    def _look(self, processes: Iterable[int]) -> None:
        """Count a round when every thread was seen asleep in it."""
        if not self._unseen:
            self._unseen = {thread for process in processes
                            for thread in Path(f"/proc/{process}/task").iterdir()}
        self._unseen -= {thread for thread in self._unseen if asleep(thread)}
        self._rounds += not self._unseen


def switches(process: int) -> list[str]:
    """Return how often the main thread of a process was switched to, by kind of switch."""
    status = Path(f"/proc/{process}/task/{process}/status").read_text()
    return [line for line in status.splitlines() if "ctxt_switches" in line]


def asleep(thread: Path) -> bool:
    """Return whether a thread waits for an event, or has ended.

    Args:
        thread: its folder in /proc.
    """
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in ASLEEP
    except OSError:
        return True
