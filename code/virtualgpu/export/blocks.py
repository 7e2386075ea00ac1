"""Peak memory by category: parameters, gradients, optimizer state, activations, and the rest.

The category of an allocation is often known only later. A gradient is recognized when autograd
assigns it to its parameter, and an activation when it outlives its forward pass. So allocations are
labeled while they live, and the peak is broken down at the end.

- A label wins (see owners.py). An allocation counts once, however many tensors are views of it,
such
  as tied parameters or gradients in a DDP bucket.
- Allocated in a forward pass, or in a recomputed one: *temporary* if that pass frees it, else an
  *activation*, which autograd saved or the program holds.
- Allocated in a backward pass or by an optimizer: *temporary*.
- Without a label after two steps: *other*, which the program holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from virtualgpu.core.memory import Allocator

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer state"
BUFFERS, ACTIVATIONS, TEMPORARY, OTHER = "buffers", "activations", "temporary", "other"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, TEMPORARY, OTHER)

# Phases of a program.
FORWARD, BACKWARD, RECOMPUTE, UPDATE = range(4)
MIN_STEPS = 2  # an allocation that outlives this many steps does not belong to a step


class LedgerTime(NamedTuple):
    """A moment of the run.

    Attributes:
        interval: number of the current interval; an interval is an uninterrupted phase.
        step: number of finished steps.
        number: number of allocations so far.
        per_step: allocations per step, if steps were detected by repetition only.
    """

    interval: int
    step: int
    number: int
    per_step: float = math.inf


class Allocation:
    """One allocation.

    Attributes:
        size: bytes of the allocator's block.
        phase: phase in which it was allocated.
        interval: number of the interval in which it was allocated.
        step: number of steps finished before.
        number: number of allocations before.
        last_interval, last_step, last_number: the same at its release.
        label: its category, if known.
        begin, end: times of allocation and release on the compute stream, in seconds; set only if a
            timeline is recorded.
    """

    __slots__ = ("begin", "end", "interval", "label", "last_interval", "last_number", "last_step",
                 "number", "phase", "size", "step")

    def __init__(self, size: int, phase: int, interval: int, step: int, number: int) -> None:
        self.size, self.phase, self.interval, self.step = size, phase, interval, step
        self.number, self.label, self.last_interval = number, None, -1


class Allocations:
    """The allocations of one virtual GPU: those at the peak, and those alive.

    Attributes:
        peak: bytes allocated at the peak.
        reserved: bytes that the allocator had reserved then.
        non_pytorch: bytes that CUDA and NCCL had allocated then.
        history: all released allocations, if a timeline is recorded.
    """

    def __init__(self, memory: Allocator) -> None:
        self.memory = memory
        self.live: dict[int, Allocation] = {}
        self.at_peak: list[Allocation] = []  # allocated at the peak and freed since
        self.count = self.peak_number = 0
        self.peak, self.reserved, self.non_pytorch = 0, memory.reserved, memory.non_pytorch
        self.history: list[Allocation] | None = None

    def allocated(self, key: int, size: int, phase: int, interval: int, step: int) -> Allocation:
        """Record an allocation that the allocator has made.

        Args:
            key: identity of the storage.
            size: bytes of the allocator's block.
            phase: the program's phase.
            interval: number of the interval.
            step: number of finished steps.
        """
        self.count = number = self.count + 1
        block = self.live[key] = Allocation(size, phase, interval, step, number)
        memory = self.memory
        live = memory.small.live + memory.large.live
        if live > self.peak:
            self.peak, self.peak_number = live, number
            self.reserved, self.non_pytorch = memory.reserved, memory.non_pytorch
            self.at_peak.clear()
        return block

    def released(self, key: int, interval: int, step: int) -> Allocation | None:
        """Record a release; return None for an allocation older than the ledger."""
        block = self.live.pop(key, None)
        if block is None:
            return None
        block.last_interval, block.last_step, block.last_number = interval, step, self.count
        if block.number <= self.peak_number:
            self.at_peak.append(block)
        if self.history is not None:
            self.history.append(block)
        return block

    def held_at_peak(self) -> Iterator[Allocation]:
        yield from self.at_peak
        for block in self.live.values():
            if block.number <= self.peak_number:
                yield block

    def categories_at_peak(self, now: LedgerTime) -> dict[str, int]:
        """Return the bytes by category at the peak; they add up to the peak."""
        sizes = dict.fromkeys(CATEGORIES, 0)
        for block in self.held_at_peak():
            sizes[category(block, now)] += block.size
        return sizes


def category(block: Allocation, now: LedgerTime) -> str:
    """Return the category of an allocation, whether it is freed or alive."""
    if block.label is not None:
        return block.label
    last = now if block.last_interval < 0 else LedgerTime(
        block.last_interval, block.last_step, block.last_number, now.per_step)
    if last.step - block.step >= MIN_STEPS or last.number - block.number > MIN_STEPS * now.per_step:
        return OTHER
    if block.phase in (FORWARD, RECOMPUTE):
        freed_in_pass = last is not now and last.interval == block.interval
        return TEMPORARY if freed_in_pass else ACTIVATIONS
    return TEMPORARY
