"""The figures of one of the allocator's pools, and its free blocks."""

from __future__ import annotations

from virtualgpu.core.segments import FreeBlocks


class Pool:
    """Allocations of one size class: small ones, or the others.

    Attributes:
        least_rest: a block is split if at least this many bytes remain.
        live: bytes in use.
        reserved: bytes taken from CUDA.
        requested: bytes in use, before rounding.
        count: allocations in use.
        segments: segments taken from CUDA.
        peaks: peaks of these five since their last reset, in this order.
        totals: sums of everything added to these five since the totals' last reset.
        before: values of these five at that reset.
        streams: the free blocks by stream.
    """

    __slots__ = ("before", "count", "least_rest", "live", "peaks", "requested", "reserved",
                 "segments", "streams", "totals")

    def __init__(self, least_rest: int) -> None:
        self.least_rest = least_rest
        self.live = self.reserved = self.requested = self.count = self.segments = 0
        self.peaks, self.totals, self.before = [0] * 5, [0] * 5, [0] * 5
        self.streams: dict[str, FreeBlocks] = {}

    @property
    def levels(self) -> tuple[int, int, int, int, int]:
        return self.live, self.reserved, self.requested, self.count, self.segments

    def reset_peaks(self) -> None:
        self.peaks = list(self.levels)

    def reset_totals(self) -> None:
        self.before, self.totals = list(self.levels), [0] * 5

    def freed(self, at: int) -> int:
        """Return how much was freed since the totals' last reset.

        Args:
            at: index in `levels`.
        """
        return self.before[at] + self.totals[at] - self.levels[at]

    def of(self, stream: str) -> FreeBlocks:
        """Return the free blocks of a stream."""
        free = self.streams.get(stream)
        if free is None:
            free = self.streams[stream] = FreeBlocks(self)
        return free

    def add(self, size: int, requested: int) -> None:
        """Count an allocation.

        Args:
            size: bytes of its block.
            requested: bytes that the program asked for.
        """
        live = self.live = self.live + size
        asked = self.requested = self.requested + requested
        count = self.count = self.count + 1
        totals, peaks = self.totals, self.peaks
        totals[0] += size
        totals[2] += requested
        totals[3] += 1
        if live > peaks[0]:
            peaks[0] = live
        if asked > peaks[2]:
            peaks[2] = asked
        if count > peaks[3]:
            peaks[3] = count

    def grow(self, size: int) -> None:
        """Count a segment of `size` bytes."""
        self.reserved += size
        self.segments += 1
        for at, added in ((1, size), (4, 1)):
            self.totals[at] += added
            self.peaks[at] = max(self.peaks[at], self.levels[at])

    def release_cached(self) -> None:
        """Return free blocks that are whole segments to CUDA."""
        for free in self.streams.values():
            for block in list(free.blocks):
                if block.before is None and block.after is None:
                    free.remove(block)
                    self.reserved -= block.size
                    self.segments -= 1
