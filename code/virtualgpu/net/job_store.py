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
STORE_TIMEOUT = timedelta(days=30)  # practically none: the detector enforces each wait's own
DEADLOCK_MARK = b"\0hung\0"  # prefix of errors posted in place of entries that will never exist
ABSENT = "?"  # compare_set returns it for a missing entry, where get would block


class PendingWait(NamedTuple):
    """A blocked rank's wait for entries that do not exist yet.

    Attributes:
        serial: number of the wait.
        keys: the entries' keys.
        text: description of the wait for error messages.
        timeout: limit in real time.
    """

    serial: int
    keys: list[str]
    text: str
    timeout: timedelta


class JobStore:
    """This rank's connection to the store."""

    def __init__(self, store: dist.Store, rank: int, present: Sequence[int]) -> None:
        """Connect to the store.

        Args:
            store: any store of torch.distributed that the ranks share.
            rank: this process's rank in the job.
            present: all ranks of the job that are processes.
        """
        self.store = store.clone()
        self.store.set_timeout(STORE_TIMEOUT)
        self.rank, self.present, self.serial = rank, list(present), 0
        self.has_multi_get = self.store.has_extended_api()
        self.waiting: PendingWait | None = None
        self.ended = False
        self.lock = threading.Lock()
        self.detector = DeadlockMonitor(self, store.clone())
        self.detector.start()

    def post(self, key: str, value: bytes) -> None:
        self.store.set(key, value)

    def drop(self, key: str) -> None:
        self.store.delete_key(key)

    def take(self, keys: list[str], text: str, timeout: timedelta) -> list[bytes]:
        """Return the entries once all of them exist.

        Args:
            keys: the entries' keys.
            text: description of the wait for error messages.
            timeout: limit in real time, which also applies while another rank is busy.

        Raises:
            Hang: no rank can make progress, or the timeout has passed.
        """
        self.serial += 1
        self.waiting = PendingWait(self.serial, keys, text, timeout)
        try:
            entries = (self.store.multi_get(keys) if self.has_multi_get else
                       [self.store.get(key) for key in keys])
        except dist.DistNetworkError as error:
            raise Hang(f"rank {self.rank} {text}, but the rank that hosts the store has exited"
                       ) from error
        with self.lock:
            self.waiting = None
            self.detector.leave()
        for entry in entries:
            if entry.startswith(DEADLOCK_MARK):
                raise Hang(entry.removeprefix(DEADLOCK_MARK).decode())
        return entries

    def end(self) -> None:
        """Announce that this rank posts nothing more; later calls do nothing."""
        if not self.ended:
            self.ended = True
            self.post(f"waits/{self.rank}", json.dumps(
                {"keys": [], "text": "has ended", "serial": self.serial}).encode())
            self.post(f"ended/{self.rank}", b"")

    def wait_for_ends(self, timeout: timedelta) -> None:
        """Wait until every rank has ended. Raises DistStoreError after `timeout` of real time."""
        self.store.wait([f"ended/{rank}" for rank in self.present], timeout)


class DeadlockMonitor(threading.Thread):
    """A thread that checks for a deadlock when this rank has waited for half a second."""

    def __init__(self, job_store: JobStore, store: dist.Store) -> None:
        """Create the thread.

        Args:
            job_store: this rank's connection to the store.
            store: a second connection, because the first is busy while the rank waits.
        """
        super().__init__(name="virtualgpu deadlock detector", daemon=True)
        self.job_store, self.store = job_store, store
        self.row = f"waits/{job_store.rank}"
        self.rows = [f"waits/{rank}" for rank in job_store.present]
        self.entered = False
        self.seen, self.ticks = 0, 0

    def run(self) -> None:
        pause = threading.Event()
        with suppress(dist.DistError, RuntimeError):  # the rank that serves the store has ended
            while not pause.wait(TICK):
                self.check()

    def leave(self) -> None:
        """Withdraw this rank's wait. The rank calls this before it posts anything."""
        if self.entered:
            self.entered = False
            self.job_store.drop(self.row)

    def check(self) -> None:
        """Check once; if the rank's wait cannot end, post an error in place of the entries."""
        wait = self.job_store.waiting
        if wait is None or wait.serial != self.seen:
            self.seen, self.ticks = 0 if wait is None else wait.serial, 0
            return
        self.ticks += 1
        with self.job_store.lock:
            if self.job_store.waiting is not wait:
                return
            if not self.entered:
                self.entered = True
                self.store.set(self.row, json.dumps(
                    {"keys": wait.keys, "text": wait.text, "serial": wait.serial}).encode())
        text = self.deadlock()
        if text is None and self.ticks * TICK > wait.timeout.total_seconds():
            text = f"rank {self.job_store.rank} {wait.text}, for longer than {wait.timeout}"
        if text is not None:
            for key in wait.keys:
                if not self.store.check([key]):
                    self.store.set(key, DEADLOCK_MARK + text.encode())

    def deadlock(self) -> str | None:
        """Return an error message that lists all waits if no rank can progress, else None."""
        if self.store.check(["hang"]):
            return self.store.get("hang").decode()
        before = self.waits()
        if before is None:
            return None
        entries = [json.loads(row) for row in before]
        if any(entry["keys"] and self.store.check(entry["keys"]) for entry in entries):
            return None  # that rank is about to continue
        # A rank that waited before this check and still waits has posted nothing in between.
        if self.waits() != before:
            return None
        text = "deadlock: no rank can make progress: " + "; ".join(
            f"rank {rank} {entry['text']}"
            for rank, entry in zip(self.job_store.present, entries, strict=True))
        self.store.set("hang", text)
        return text

    def waits(self) -> list[bytes] | None:
        """Return the waits of all ranks, or None if one of them is not waiting."""
        rows = [self.store.compare_set(row, ABSENT, ABSENT) for row in self.rows]
        return None if ABSENT.encode() in rows else rows
