"""Blocks of GPU memory segments, and each stream's list of free ones.

Every operation of a program allocates and frees, so this code is written for speed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtualgpu.core.pool import Pool

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
