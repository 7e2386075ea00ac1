"""Allocated memory over time, on the GPU's clock.

The host runs ahead of the GPU: it has allocated all the memory of a forward pass long before the
GPU computes it, but readers of a curve expect the GPU's time. So a trace shows an allocation when
the host requests it, within its operation, and a release when the GPU reaches it. The totals at
both follow the GPU's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from virtualgpu.export.trace import MemoryNote

FIRST_ADDRESS, ADDRESS_STEP = 0x7F0000000000, 512  # invented, and never reused
Level = tuple[int, int]  # bytes allocated, bytes reserved


class MemoryLevels:
    """Computes the level to show at each allocation and release, which come in the host's order."""

    def __init__(self) -> None:
        self.ahead: deque[tuple[float, Level]] = deque()  # not reached by the GPU yet
        self.now: Level | None = None
        self.crest: Level = (0, 0)  # the highest since the last release
        self.curve: dict[float, Level] = {}  # the highest at each time, in seconds
        self.known: dict[int, int] = {}
        self.given = 0

    def allocated(self, note: MemoryNote) -> Level:
        """Return the level at the time of the host's request."""
        if self.now is None:
            self.now = note.live - note.size, note.reserved
        while self.ahead and self.ahead[0][0] <= note.host:
            self.now = self.ahead.popleft()[1]
        self._reach(note)
        return self.now

    def freed(self, note: MemoryNote) -> Level:
        """Return the highest level since the last release, so that no peak is lost."""
        self._reach(note)
        shown, self.crest = self.crest, (note.live, note.reserved)
        return shown

    def _reach(self, note: MemoryNote) -> None:
        level = note.live, note.reserved
        self.ahead.append((note.ready, level))
        self.crest = max(self.crest, level)
        self.curve[note.ready] = max(self.curve.get(note.ready, level), level)

    def address(self, note: MemoryNote) -> int:
        """Return an address, the same for an allocation and its release."""
        known = self.known.pop(note.address, None) if note.size < 0 else None
        if known is None:
            self.given += 1
            known = FIRST_ADDRESS + ADDRESS_STEP * self.given
        if note.size > 0:
            self.known[note.address] = known
        return known

    def counters(self, card: int) -> Iterator[dict]:
        """Yield the counter events that trace viewers draw as a curve."""
        for time, (allocated, reserved) in self.curve.items():
            yield {"ph": "C", "name": "memory (MiB)", "pid": card, "ts": round(1e9 * time) / 1000,
                   "args": {"allocated": allocated >> 20, "more reserved": (
                       reserved - allocated) >> 20}}
