"""Find the steps of a program, and account for each of them.

Marked steps (`virtualgpu.mark_step()`) come first, then the steps of the first optimizer, then the
repetition of operations. Times are those at which the GPU, not the host, gets there: the host runs
ahead of it.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from virtualgpu.core.plan import Plan
from virtualgpu.export.blocks import BACKWARD
from virtualgpu.export.work import Work, Works

MARK, OPTIMIZER_STEP, REPETITION = "marked steps", "optimizer steps", "repetition of operations"
FEWEST = 3  # repetitions that make a step
MOST_CANDIDATES = 64


@dataclass
class Notes:
    """Record of the current step: its operations, and what the program did at each of them.

    For each operation, it also has the time at which the compute stream reached it and the kernel
    time until then. `begin` is in seconds; `computing` and `exposed` are the GPU's kernel time and
    the clock's exposed communication at the beginning of the step.
    """

    begin: float
    computing: float
    exposed: dict[str, float]
    plans: list[Plan] = field(default_factory=list)
    phases: bytearray = field(default_factory=bytearray)
    times: array = field(default_factory=lambda: array("d"))
    busy: array = field(default_factory=lambda: array("d"))
    forgotten: int = 0

    def forget(self, count: int) -> None:
        """Drop the oldest operations of a program whose steps nobody marks."""
        self.begin, self.computing = self.times[count], self.busy[count]
        self.forgotten += count
        for notes in (self.plans, self.phases, self.times, self.busy):
            del notes[:count]


@dataclass
class Step:
    """kind: how its end was found. seconds: on the GPU's clock. kernels: seconds of kernels.
    operations: how many. exposed: seconds of exposed communication, by the stream that waited."""

    kind: str
    seconds: float
    kernels: float
    work: Work
    operations: int = 0
    exposed: Counter[str] = field(default_factory=Counter)

    def add(self, other: Step) -> None:
        self.seconds += other.seconds
        self.kernels += other.kernels
        self.operations += other.operations
        self.work.add(other.work)
        self.exposed += other.exposed


def fold(notes: Notes, works: Works, kind: str, end: float, computing: float) -> Step:
    """Return what happened in a step, but for the exposed communication.

    Args:
        notes: everything since the step before.
        works: adds up operations.
        kind: how the step's end was found.
        end: when the GPU was done (seconds).
        computing: kernel time until then (seconds).
    """
    return Step(kind, end - notes.begin, computing - notes.computing,
                works.of(notes.plans, notes.phases), len(notes.plans))


def merged(steps: Sequence[Step]) -> list[Step]:
    """The steps that count: if any were marked, what lies between two marks is one step."""
    if not any(step.kind == MARK for step in steps):
        return list(steps)
    found: list[Step] = []
    current: Step | None = None
    for step in steps:
        if current is None:
            current = Step(MARK, 0.0, 0.0, Work())
        current.add(step)
        if step.kind == MARK:
            found.append(current)
            current = None
    return found


def repeated(notes: Notes, works: Works, end: float, computing: float) -> list[Step]:
    """Steps found by the repetition of operations; empty if most of them do not repeat, or if what
    repeats has neither a backward pass nor a matrix product, such as the initialization of layers.

    Args:
        notes: everything that happened.
        works: adds up operations.
        end: when the GPU was done (seconds).
        computing: kernel time of the run (seconds).
    """
    # Plans also differ by numbers, such as an offset, that change nothing about the work.
    kinds: dict[tuple[str, float], int] = {}
    found = period([kinds.setdefault((plan.name, plan.seconds), len(kinds))
                    for plan in notes.plans])
    if found is None:
        return []
    start, size, count = found
    steps, times, busy = [], [*notes.times, end], [*notes.busy, computing]
    for first in range(start, start + count * size, size):
        last = first + size
        part = Notes(times[first], busy[first], {}, notes.plans[first:last],
                     notes.phases[first:last])
        steps.append(fold(part, works, REPETITION, times[last], busy[last]))
    step = BACKWARD in notes.phases[start:start + size] or steps[0].work.computes
    # Where the repeated work runs on other streams, this says nothing of its time.
    return steps if step and min(one.seconds for one in steps) > 0 else []


def period(tokens: Sequence[int]) -> tuple[int, int, int] | None:
    """Find the shortest stretch that repeats at least three times in a row and makes up at least
    half of a sequence. Returns where it first begins, its length, and how often it is there."""
    if len(tokens) < FEWEST:
        return None
    with torch._C._DisableTorchDispatch():
        sequence = torch.tensor(tokens)
        _, kinds, counts = sequence.unique(return_inverse=True, return_counts=True)
        often = counts[kinds]
        rare = int(often[often >= FEWEST].min()) if bool((often >= FEWEST).any()) else 0
        gaps = {int(gap) for kind in (counts == rare).nonzero().flatten()[:MOST_CANDIDATES]
                for gap in (kinds == kind).nonzero().flatten().diff()}
        for size in sorted(gaps)[:MOST_CANDIDATES]:
            start, length = longest(sequence[size:] == sequence[:-size])
            count = (length + size) // size
            if count >= FEWEST and 2 * count * size >= len(tokens):
                return start, size, count
    return None


def longest(same: torch.Tensor) -> tuple[int, int]:
    """Return the start and the length of the longest run of True in a vector."""
    breaks = (~same).nonzero().flatten().tolist()
    edges = [-1, *breaks, len(same)]
    length, before = max((after - before - 1, -before)
                         for before, after in itertools.pairwise(edges))
    return 1 - before, length
