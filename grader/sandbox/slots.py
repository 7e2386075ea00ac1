"""A user number for each running sandbox, because the kernel counts some limits per user."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from grader.sandbox.interface import Unavailable

FIRST, COUNT = 61000, 184  # systemd uses the numbers from 61184 on, and some below 61000
FOLDER = Path("/run/lab-sandbox")


class Slot:
    """A user number, held until `free` is called or this process ends."""

    def __init__(self, number: int, descriptor: int) -> None:
        self.uid = FIRST + number
        self._descriptor: int | None = descriptor

    def free(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def take(folder: Path = FOLDER) -> Slot:
    """Return the lowest free slot; for root. Raises Unavailable when all are taken or none can be
    locked."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{folder}, for the locks of sandboxes' users: {error.strerror}"
                          ) from error
    for number in range(COUNT):
        descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return Slot(number, descriptor)
    raise Unavailable(f"{COUNT} sandboxes are already running, as many as there are user IDs "
                      f"for them ({folder}): start fewer workers")


def mapped() -> bool:
    """Return whether the numbers exist here: in some containers they do not."""
    try:
        lines = Path("/proc/self/uid_map").read_text().split("\n")
    except OSError:
        return True  # a kernel without user namespaces
    ranges = [tuple(int(word) for word in line.split()) for line in lines if line]
    return any(first <= FIRST and first + count >= FIRST + COUNT for first, _, count in ranges)
