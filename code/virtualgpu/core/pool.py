"""Statistics and free blocks of one of the allocator's pools."""

from __future__ import annotations

from virtualgpu.core.segments import FreeBlocks


class Pool:
    """The blocks of one size class: small or large.

    Attributes:
        min_remainder: bytes that must remain for a block to be split.
        live: bytes in use.
        reserved: bytes that CUDA allocated.
        requested: bytes in use, before rounding.
        count: allocations in use.
        segments: segments that CUDA allocated.
        peaks: peaks of these five since their last reset, in this order.
        totals: sums of the increases of these five since the totals' last reset.
        before: values of these five at that reset.
        streams: free blocks by stream.
    """

    __slots__ = (
        "before",
        "count",
        "live",
        "min_remainder",
        "peaks",
        "requested",
        "reserved",
        "segments",
        "streams",
        "totals",
    )

    def __init__(self, min_remainder: int) -> None:
        self.min_remainder = min_remainder
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

    def freed(self, index: int) -> int:
        """Return the amount freed since the totals' last reset.

        Args:
            index: index of the quantity in `levels`.
        """
        return self.before[index] + self.totals[index] - self.levels[index]

    def free_blocks(self, stream: str) -> FreeBlocks:
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
        total_requested = self.requested = self.requested + requested
        count = self.count = self.count + 1
        totals, peaks = self.totals, self.peaks
        totals[0] += size
        totals[2] += requested
        totals[3] += 1
        if live > peaks[0]:
            peaks[0] = live
        if total_requested > peaks[2]:
            peaks[2] = total_requested
        if count > peaks[3]:
            peaks[3] = count

    def grow(self, size: int) -> None:
        """Count a segment of `size` bytes."""
        self.reserved += size
        self.segments += 1
        for index, added in ((1, size), (4, 1)):
            self.totals[index] += added
            self.peaks[index] = max(self.peaks[index], self.levels[index])

    def release_cached(self) -> None:
        """Return free blocks that span a whole segment to CUDA."""
        for free in self.streams.values():
            for block in list(free.blocks):
                if block.before is None and block.after is None:
                    free.remove(block)
                    self.reserved -= block.size
                    self.segments -= 1
