"""The allocator's pools: blocks of GPU memory segments, and each stream's list of free ones.

Every operation of a program allocates and frees, so this code is written for speed.
"""

from __future__ import annotations

from bisect import bisect_left

ADDRESS_BITS = 64  # a sort key is the size, then the address in the low bits


class MemoryBlock:
    """A part of a segment.

    Attributes:
        address: address of its first byte.
        size: size in bytes.
        free: the free blocks of its pool and stream.
        requested: bytes that the program asked for.
        used: whether it is allocated.
        before, after: its neighbors in the segment.
    """

    __slots__ = ("address", "after", "before", "free", "requested", "size", "used")

    def __init__(self, address: int, size: int, free: FreeBlocks, before: MemoryBlock | None = None,
                 after: MemoryBlock | None = None) -> None:
        self.address, self.size, self.free = address, size, free
        self.before, self.after = before, after
        self.used, self.requested = False, 0


class FreeBlocks:
    """The free blocks of one pool and stream, sorted by size, and by address within a size."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.keys: list[int] = []
        self.blocks: list[MemoryBlock] = []  # in the order of the keys

    def take(self, size: int, segment: MemoryBlock | None = None) -> MemoryBlock | None:
        """Allocate a block of at least `size` bytes; return None if none is free.

        Best fit: the smallest free block, and of several with that size, the one with the lowest
        address. If enough remains (Pool.min_remainder), the rest becomes a free block.

        Args:
            size: a multiple of 512 bytes.
            segment: a new segment to split, instead of a free block.
        """
        keys, block = self.keys, segment
        if block is None:
            index = bisect_left(keys, size << ADDRESS_BITS)
            if index == len(keys):
                return None
            del keys[index]
            block = self.blocks.pop(index)
        remaining = block.size - size
        if remaining >= self.pool.min_remainder:
            address, after = block.address + size, block.after
            block.size = size
            block.after = rest = MemoryBlock(address, remaining, self, block, after)
            if after is not None:
                after.before = rest
            key = remaining << ADDRESS_BITS | address
            index = bisect_left(keys, key)
            keys.insert(index, key)
            self.blocks.insert(index, rest)
        block.used = True
        return block

    def release(self, block: MemoryBlock) -> None:
        """Free a block, and merge it with its free neighbors."""
        before, after = block.before, block.after
        if before is not None and not before.used:
            self.remove(before)
            block.address = before.address
            block.size += before.size
            block.before = before = before.before
            if before is not None:
                before.after = block
        if after is not None and not after.used:
            self.remove(after)
            block.size += after.size
            block.after = after = after.after
            if after is not None:
                after.before = block
        block.used = False
        key = block.size << ADDRESS_BITS | block.address
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)

    def remove(self, block: MemoryBlock) -> None:
        """Remove a free block."""
        index = bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)
        del self.keys[index], self.blocks[index]


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
