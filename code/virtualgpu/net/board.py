"""A store that all ranks of a job share, and who waits there for what.

No rank is judged by how long it takes. One that has waited for half a second writes down for which
entries it waits; when all ranks have done so, or have ended, and none of them waits for entries
that exist, nobody can ever go on, since a rank that waits posts nothing. That is a hang, and every
rank raises it with the list of who waits where.
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

TICK = 0.5  # real seconds from one look at a waiting rank to the next
FOREVER = timedelta(days=30)  # the store's own timeout; the watcher has the one that counts
HUNG = b"\0hung\0"  # begins what the watcher posts in place of entries that will never come
ABSENT = "?"  # compare_set returns it where there is no entry, and does not block as get does


class Wait(NamedTuple):
    """What this rank waits for: entries, in words, and how long at most."""

    serial: int
    keys: list[str]
    text: str
    timeout: timedelta


class Board:
    """This rank's connection to the store."""

    def __init__(self, store: dist.Store, rank: int, present: Sequence[int]) -> None:
        """Args:
            store: any store of torch.distributed that the ranks share.
            rank: of this process in the job.
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
            keys: of the entries.
            text: what this rank waits for, in words.
            timeout: of real time, after which even a rank that is busy elsewhere is lost.

        Raises Hang.
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
        """This rank posts nothing more. Later calls do nothing."""
        if not self.ended:
            self.ended = True
            self.post(f"waits/{self.rank}", json.dumps(
                {"keys": [], "text": "has ended", "serial": self.serial}).encode())
            self.post(f"ended/{self.rank}", b"")

    def wait_for_ends(self, timeout: timedelta) -> None:
        """Wait until every rank has ended. Raises DistStoreError after this much real time."""
        self.store.wait([f"ended/{rank}" for rank in self.present], timeout)


class Watcher(threading.Thread):
    """Looks at this rank now and then, and if it waits for long, at the others."""

    def __init__(self, board: Board, store: dist.Store) -> None:
        """Args:
            board: of this rank.
            store: a connection of its own: the board's is busy while the rank waits.
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
        """The rank goes on. Called by the rank itself, before it posts anything."""
        if self.entered:
            self.entered = False
            self.board.drop(self.row)

    def look(self) -> None:
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
        """Who waits where, if nobody can go on."""
        if self.store.check(["hang"]):
            return self.store.get("hang").decode()
        before = self.read()
        if before is None:
            return None
        entries = [json.loads(row) for row in before]
        if any(entry["keys"] and self.store.check(entry["keys"]) for entry in entries):
            return None  # that rank is about to go on
        # Whoever waited before that look and still waits has posted nothing meanwhile.
        if self.read() != before:
            return None
        text = "deadlock: no rank can make progress: " + "; ".join(
            f"rank {rank} {entry['text']}"
            for rank, entry in zip(self.board.present, entries, strict=True))
        self.store.set("hang", text)
        return text

    def read(self) -> list[bytes] | None:
        """What all ranks wait for; None where one does not wait."""
        rows = [self.store.compare_set(row, ABSENT, ABSENT) for row in self.rows]
        return None if ABSENT.encode() in rows else rows
