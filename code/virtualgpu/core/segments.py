"""Segments of GPU memory are split into blocks, and each stream has a list of its free ones.

Every operation of a program allocates and frees, so this code is written for speed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from virtualgpu.core.pool import Pool

ADDRESS_BITS = 64  # free blocks are sorted by one number: the size, and the address below it


class Block:
    """A part of a segment.

    Attributes:
        address: of its first byte.
        size: in bytes.
        free: the free blocks of its pool and stream.
        requested: bytes that the program asked for.
        used: whether it is allocated.
        before, after: its neighbors in the segment.
    """

    __slots__ = ("address", "after", "before", "free", "requested", "size", "used")

    def __init__(self, address: int, size: int, free: FreeBlocks, before: Block | None = None,
                 after: Block | None = None) -> None:
        self.address, self.size, self.free = address, size, free
        self.before, self.after = before, after
        self.used, self.requested = False, 0


class FreeBlocks:
    """The free blocks of one pool and stream, sorted by size, and by address within a size."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.keys: list[int] = []
        self.blocks: list[Block] = []  # in the order of the keys

    def take(self, size: int, segment: Block | None = None) -> Block | None:
        """Return a block of at least `size` bytes, which is used from now on, or None.

        It is the smallest that is free; of several with that size, the one with the lowest address.
        If more remains than the pool leaves unsplit, the rest becomes a free block.

        Args:
            size: a multiple of 512 bytes.
            segment: a new segment to take it from, instead of the free blocks.
        """
        keys, block = self.keys, segment
        if block is None:
            at = bisect_left(keys, size << ADDRESS_BITS)
            if at == len(keys):
                return None
            del keys[at]
            block = self.blocks.pop(at)
        remaining = block.size - size
        if remaining >= self.pool.least_rest:
            address, after = block.address + size, block.after
            block.size = size
            block.after = rest = Block(address, remaining, self, block, after)
            if after is not None:
                after.before = rest
            key = remaining << ADDRESS_BITS | address
            at = bisect_left(keys, key)
            keys.insert(at, key)
            self.blocks.insert(at, rest)
        block.used = True
        return block

    def give_back(self, block: Block) -> None:
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
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)

    def remove(self, block: Block) -> None:
        """Remove a free block."""
        at = bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)
        del self.keys[at], self.blocks[at]
