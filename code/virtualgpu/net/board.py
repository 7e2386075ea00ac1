"""A store that all ranks of a job share, and the detection of deadlocks.

No timeout decides. A rank that has waited for half a second posts the list of entries that it waits
for. If all ranks have done so, or have ended, and none of the entries exists, no rank can ever make
progress, because a rank that waits posts nothing. Then every rank raises Hang, with a list of what
each rank waits for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from virtualgpu.net.errors import Hang

TICK = 0.5  # real seconds between two checks of a waiting rank
FOREVER = timedelta(days=30)  # the store's own timeout; the watcher enforces the real one
HUNG = b"\0hung\0"  # prefix of what the watcher posts in place of entries that will never exist
ABSENT = "?"  # compare_set returns it for a missing entry, where get would block


class Wait(NamedTuple):
    """A rank's wait for entries of the store.

    Attributes:
        serial: number of the wait.
        keys: the entries' keys.
        text: the wait, as error messages describe it.
        timeout: limit in real time.
    """

    serial: int
    keys: list[str]
    text: str
    timeout: timedelta


class Board:
    """This rank's connection to the store."""

    def __init__(self, store: dist.Store, rank: int, present: Sequence[int]) -> None:
        """Connect to the store.

        Args:
            store: any store of torch.distributed that the ranks share.
            rank: this process's rank in the job.
            present: all ranks of the job that are processes.
        """
        self.store = store.clone()
        self.store.set_timeout(FOREVER)
        self.rank, self.present, self.serial = rank, list(present), 0
        self.together = self.store.has_extended_api()
        self.waiting: Wait | None = None
        self.ended = False
        self.lock = threading.Lock()
        self.watcher = Watcher(self, store.clone())
        self.watcher.start()

    def post(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def drop(self, key: str) -> None:
        self.store.delete_key(key)

    def take(self, keys: list[str], text: str, timeout: timedelta) -> list[bytes]:
        """Return the entries once all of them exist.

        Args:
            keys: the entries' keys.
            text: the wait, as error messages describe it.
            timeout: limit in real time, even if another rank is only busy.

        Raises:
            Hang: no rank can make progress, or the time is over.
        """
        self.serial += 1
        self.waiting = Wait(self.serial, keys, text, timeout)
        try:
            found = (self.store.multi_get(keys) if self.together else
                     [self.store.get(key) for key in keys])
        except dist.DistNetworkError as error:
            raise Hang(f"rank {self.rank} {text}, but the rank that hosts the store has exited"
                       ) from error
        with self.lock:
            self.waiting = None
            self.watcher.leave()
        for one in found:
            if one.startswith(HUNG):
                raise Hang(one.removeprefix(HUNG).decode())
        return found

    def end(self) -> None:
        """Tell the others that this rank posts nothing more; later calls do nothing."""
        if not self.ended:
            self.ended = True
            self.post(f"waits/{self.rank}", json.dumps(
                {"keys": [], "text": "has ended", "serial": self.serial}).encode())
            self.post(f"ended/{self.rank}", b"")

    def wait_for_ends(self, timeout: timedelta) -> None:
        """Wait until every rank has ended. Raises DistStoreError after `timeout` of real time."""
        self.store.wait([f"ended/{rank}" for rank in self.present], timeout)


class Watcher(threading.Thread):
    """A thread that checks whether this rank waits for long, and if so, whether all ranks do."""

    def __init__(self, board: Board, store: dist.Store) -> None:
        """Create the thread.

        Args:
            board: this rank's board.
            store: a connection of its own, because the board's is busy while the rank waits.
        """
        super().__init__(name="virtualgpu watcher", daemon=True)
        self.board, self.store = board, store
        self.row = f"waits/{board.rank}"
        self.rows = [f"waits/{rank}" for rank in board.present]
        self.entered = False
        self.seen, self.ticks = 0, 0

    def run(self) -> None:
        pause = threading.Event()
        with suppress(dist.DistError, RuntimeError):  # the rank that serves the store has ended
            while not pause.wait(TICK):
                self.look()

    def leave(self) -> None:
        """Withdraw this rank's wait; the rank itself calls it before it posts anything."""
        if self.entered:
            self.entered = False
            self.board.drop(self.row)

    def look(self) -> None:
        """Check once, and post an error in place of the entries if the rank's wait cannot end."""
        wait = self.board.waiting
        if wait is None or wait.serial != self.seen:
            self.seen, self.ticks = 0 if wait is None else wait.serial, 0
            return
        self.ticks += 1
        with self.board.lock:
            if self.board.waiting is not wait:
                return
            if not self.entered:
                self.entered = True
                self.store.set(self.row, json.dumps(
                    {"keys": wait.keys, "text": wait.text, "serial": wait.serial}).encode())
        text = self.verdict()
        if text is None and self.ticks * TICK > wait.timeout.total_seconds():
            text = f"rank {self.board.rank} {wait.text}, for longer than {wait.timeout}"
        if text is not None:
            for key in wait.keys:
                if not self.store.check([key]):
                    self.store.set(key, HUNG + text.encode())

    def verdict(self) -> str | None:
        """Return an error message that lists all waits, or None unless no rank can progress."""
        if self.store.check(["hang"]):
            return self.store.get("hang").decode()
        before = self.read()
        if before is None:
            return None
        entries = [json.loads(row) for row in before]
        if any(entry["keys"] and self.store.check(entry["keys"]) for entry in entries):
            return None  # that rank is about to continue
        # A rank that waited before this check and still waits has posted nothing in between.
        if self.read() != before:
            return None
        text = "deadlock: no rank can make progress: " + "; ".join(
            f"rank {rank} {entry['text']}"
            for rank, entry in zip(self.board.present, entries, strict=True))
        self.store.set("hang", text)
        return text

    def read(self) -> list[bytes] | None:
        """Return the waits of all ranks, or None if one of them is not waiting."""
        rows = [self.store.compare_set(row, ABSENT, ABSENT) for row in self.rows]
        return None if ABSENT.encode() in rows else rows
