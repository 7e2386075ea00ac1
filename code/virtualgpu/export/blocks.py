"""Peak memory by what it holds: parameters, gradients, optimizer state, activations, and the rest.

Every allocation is a block. What a block holds is often known only later: a gradient becomes one
when autograd hands it to its parameter, and whether the result of a forward pass was an activation
shows when it is freed. So blocks are labeled while they live, and the peak is divided at the end.

- A label wins (see owners.py). A block counts once, however many tensors are views of it: tied
  parameters, gradients in a DDP bucket.
- Allocated in a forward pass, or in a recomputed one: *temporary* if that pass frees it, else an
  *activation*: autograd saved it, or the program holds it.
- Allocated in a backward pass or by an optimizer: *temporary*.
- Whatever outlives two steps without a label is *other*: the program holds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from virtualgpu.core.memory import Allocator

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer state"
BUFFERS, ACTIVATIONS, TEMPORARY, OTHER = "buffers", "activations", "temporary", "other"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, TEMPORARY, OTHER)

# What the program does while an operation runs.
FORWARD, BACKWARD, RECOMPUTE, UPDATE = range(4)
LONG = 2  # steps that a block must outlive to be no part of a step


class Now(NamedTuple):
    """A moment: the stretch that the program is in, steps finished, and allocations so far.
    per_step: allocations of a step, where only repetition tells that there are steps."""

    interval: int
    step: int
    number: int
    per_step: float = math.inf


class Block:
    """One allocation.

    size: bytes that the allocator gave. phase: when it was allocated; interval: the
    uninterrupted stretch of that phase; step: steps finished before. number: allocations before it.
    last_*: the same when it was freed. label: its category, if known. begin and end: seconds on the
    compute stream, kept for a timeline only.
    """

    __slots__ = ("begin", "end", "interval", "label", "last_interval", "last_number", "last_step",
                 "number", "phase", "size", "step")

    def __init__(self, size: int, phase: int, interval: int, step: int, number: int) -> None:
        self.size, self.phase, self.interval, self.step = size, phase, interval, step
        self.number, self.label, self.last_interval = number, None, -1


class Blocks:
    """The allocations of one virtual GPU, of which those at the peak and those alive are kept.

    peak: bytes allocated at the peak; reserved: what the allocator held then, and taken: what CUDA
    and NCCL did.
    """

    def __init__(self, memory: Allocator) -> None:
        self.memory = memory
        self.live: dict[int, Block] = {}
        self.at_peak: list[Block] = []  # those that have been freed since
        self.count = self.peak_number = 0
        self.peak, self.reserved, self.taken = 0, memory.reserved, memory.taken
        self.history: list[Block] | None = None  # while a list: every block ends there

    def allocated(self, key: int, size: int, phase: int, interval: int, step: int) -> Block:
        """Take note of an allocation that the allocator has made.

        Args:
            key: identity of the storage.
            size: bytes of the allocator's block.
            phase: what the program does.
            interval: the stretch of that phase.
            step: steps finished.
        """
        self.count = number = self.count + 1
        block = self.live[key] = Block(size, phase, interval, step, number)
        memory = self.memory
        live = memory.small.live + memory.large.live
        if live > self.peak:
            self.peak, self.peak_number = live, number
            self.reserved, self.taken = memory.reserved, memory.taken
            self.at_peak.clear()
        return block

    def released(self, key: int, interval: int, step: int) -> Block | None:
        """Take note of a release; None for a block from before the ledger."""
        block = self.live.pop(key, None)
        if block is None:
            return None
        block.last_interval, block.last_step, block.last_number = interval, step, self.count
        if block.number <= self.peak_number:
            self.at_peak.append(block)
        if self.history is not None:
            self.history.append(block)
        return block

    def held_at_peak(self) -> Iterator[Block]:
        yield from self.at_peak
        for block in self.live.values():
            if block.number <= self.peak_number:
                yield block

    def categories_at_peak(self, now: Now) -> dict[str, int]:
        """Bytes by category at the peak; they add up to it."""
        sizes = dict.fromkeys(CATEGORIES, 0)
        for block in self.held_at_peak():
            sizes[category(block, now)] += block.size
        return sizes


def category(block: Block, now: Now) -> str:
    """Return what a block held, be it freed or alive."""
    if block.label is not None:
        return block.label
    last = now if block.last_interval < 0 else Now(
        block.last_interval, block.last_step, block.last_number, now.per_step)
    if last.step - block.step >= LONG or last.number - block.number > LONG * now.per_step:
        return OTHER
    if block.phase in (FORWARD, RECOMPUTE):
        freed_in_pass = last is not now and last.interval == block.interval
        return TEMPORARY if freed_in_pass else ACTIVATIONS
    return TEMPORARY
