"""Allocated memory over time, on the GPU's clock.

The host runs ahead of the GPU: it has allocated all the memory of a forward pass long before the
GPU computes it, but readers of a curve expect the GPU's time. So a trace shows an allocation where
the host requests it, within its operation, and a release where the GPU reaches it; the totals at
both follow the GPU's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from virtualgpu.export.trace import Bytes

ADDRESSES, STEP = 0x7F0000000000, 512  # made up, and never used twice
Level = tuple[int, int]  # bytes allocated, bytes reserved


class Levels:
    """Takes allocations and releases in the host's order, and gives the level to show at each."""

    def __init__(self) -> None:
        self.ahead: deque[tuple[float, Level]] = deque()  # where the card has yet to get
        self.now: Level | None = None
        self.crest: Level = (0, 0)  # the highest since the last release
        self.curve: dict[float, Level] = {}  # the highest by time (seconds)
        self.known: dict[int, int] = {}
        self.given = 0

    def allocated(self, note: Bytes) -> Level:
        """The level when the host asks."""
        if self.now is None:
            self.now = note.live - note.size, note.reserved
        while self.ahead and self.ahead[0][0] <= note.host:
            self.now = self.ahead.popleft()[1]
        self._reach(note)
        return self.now

    def freed(self, note: Bytes) -> Level:
        """The highest level since the last release, when the card gets to this one: so no peak is
        lost."""
        self._reach(note)
        shown, self.crest = self.crest, (note.live, note.reserved)
        return shown

    def _reach(self, note: Bytes) -> None:
        level = note.live, note.reserved
        self.ahead.append((note.ready, level))
        self.crest = max(self.crest, level)
        self.curve[note.ready] = max(self.curve.get(note.ready, level), level)

    def address(self, note: Bytes) -> int:
        """The same for an allocation and its release."""
        known = self.known.pop(note.address, None) if note.size < 0 else None
        if known is None:
            self.given += 1
            known = ADDRESSES + STEP * self.given
        if note.size > 0:
            self.known[note.address] = known
        return known

    def counters(self, card: int) -> Iterator[dict]:
        """The curve as trace viewers draw it."""
        for time, (allocated, reserved) in self.curve.items():
            yield {"ph": "C", "name": "memory (MiB)", "pid": card, "ts": round(1e9 * time) / 1000,
                   "args": {"allocated": allocated >> 20, "more reserved": (
                       reserved - allocated) >> 20}}
