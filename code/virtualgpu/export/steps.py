"""Detect the steps of a program, and account for each of them.

Marked steps (`virtualgpu.mark_step()`) have priority, then the steps of the first optimizer, then
the repetition of operations. Times are the GPU's, not the host's, since the host runs ahead.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch

from virtualgpu.core.plan import OperationPlan
from virtualgpu.export.blocks import BACKWARD
from virtualgpu.export.work import WorkCounter, WorkTotals

MARK, OPTIMIZER_STEP, REPETITION = "marked steps", "optimizer steps", "repetition of operations"
MIN_REPETITIONS = 3  # of a sequence that counts as a step
MAX_CANDIDATES, MAX_FREQUENCIES = 64, 4


@dataclass
class StepNotes:
    """Record of the current step.

    Attributes:
        begin: when the step began, in seconds.
        computing: the GPU's kernel time at the beginning, in seconds.
        exposed: the clock's exposed communication at the beginning, in seconds by stream.
        plans: plan of each operation.
        phases: phase of the program at each operation.
        times: when the compute stream reached each operation, in seconds.
        busy: kernel time before each operation, in seconds.
        lookups: the embeddings' positions among the operations, and their weights.
        forgotten: number of operations that were dropped.
    """

    begin: float
    computing: float
    exposed: dict[str, float]
    plans: list[OperationPlan] = field(default_factory=list)
    phases: bytearray = field(default_factory=bytearray)
    times: array = field(default_factory=lambda: array("d"))
    busy: array = field(default_factory=lambda: array("d"))
    lookups: list[tuple[int, Hashable]] = field(default_factory=list)
    forgotten: int = 0

    def forget(self, count: int) -> None:
        """Drop the oldest operations of a program whose steps are not detected while it runs."""
        self.begin, self.computing = self.times[count], self.busy[count]
        self.forgotten += count
        for notes in (self.plans, self.phases, self.times, self.busy):
            del notes[:count]
        self.lookups = self.looked_up(count, len(self.plans) + count)

    def looked_up(self, first: int, end: int) -> list[tuple[int, Hashable]]:
        """Return the lookups from one operation to before another, with positions from there."""
        left, right = (bisect_left(self.lookups, place, key=operator.itemgetter(0))
                       for place in (first, end))
        return [(position - first, table) for position, table in self.lookups[left:right]]


@dataclass
class ProgramStep:
    """A step of the program.

    Attributes:
        kind: how its end was detected.
        seconds: its duration on the GPU's clock.
        kernels: seconds in kernels.
        work: its FLOPs and tokens.
        operations: number of operations.
        exposed: seconds of exposed communication, by the stream that waited.
    """

    kind: str
    seconds: float
    kernels: float
    work: WorkTotals
    operations: int = 0
    exposed: Counter[str] = field(default_factory=Counter)

    def add(self, other: ProgramStep) -> None:
        self.seconds += other.seconds
        self.kernels += other.kernels
        self.operations += other.operations
        self.work.add(other.work)
        self.exposed += other.exposed


def fold(notes: StepNotes, counter: WorkCounter, kind: str, end: float,
         computing: float) -> ProgramStep:
    """Return the account of a step, without its exposed communication.

    Args:
        notes: the record since the end of the previous step.
        counter: adds up operations.
        kind: how the step's end was detected.
        end: when the GPU finished the step, in seconds.
        computing: the GPU's kernel time until then, in seconds.
    """
    return ProgramStep(kind, end - notes.begin, computing - notes.computing,
                       counter.total(notes.plans, notes.phases, notes.lookups), len(notes.plans))


def merged(steps: Sequence[ProgramStep]) -> list[ProgramStep]:
    """Return the steps, merged between marks if the program marked any."""
    if not any(step.kind == MARK for step in steps):
        return list(steps)
    marked: list[ProgramStep] = []
    current: ProgramStep | None = None
    for step in steps:
        if current is None:
            current = ProgramStep(MARK, 0.0, 0.0, WorkTotals())
        current.add(step)
        if step.kind == MARK:
            marked.append(current)
            current = None
    return marked


def repeated(notes: StepNotes, counter: WorkCounter, end: float,
             computing: float) -> list[ProgramStep]:
    """Return the steps that the repetition of operations reveals.

    There are none if most operations do not repeat, or if the repeated sequence has neither a
    backward pass nor a GEMM, such as the initialization of layers.

    Args:
        notes: the record of the run.
        counter: adds up operations.
        end: when the GPU finished, in seconds.
        computing: kernel time of the run, in seconds.
    """
    # Plans also differ by arguments, such as an offset, that do not change the work.
    kinds: dict[tuple[str, float], int] = {}
    repetition = period([kinds.setdefault((plan.name, plan.seconds), len(kinds))
                         for plan in notes.plans])
    if repetition is None:
        return []
    start, size, count = repetition
    steps, times, busy = [], [*notes.times, end], [*notes.busy, computing]
    for first in range(start, start + count * size, size):
        last = first + size
        part = StepNotes(times[first], busy[first], {}, notes.plans[first:last],
                         notes.phases[first:last], lookups=notes.looked_up(first, last))
        steps.append(fold(part, counter, REPETITION, times[last], busy[last]))
    is_step = BACKWARD in notes.phases[start:start + size] or steps[0].work.computes
    # Work on other streams would have no duration here.
    return steps if is_step and min(step.seconds for step in steps) > 0 else []


def period(tokens: Sequence[int]) -> tuple[int, int, int] | None:
    """Find the shortest subsequence that repeats at least three times in a row and makes up at
    least half of a sequence. Return its start, its length, and its number of repetitions."""
    if len(tokens) < MIN_REPETITIONS:
        return None
    with torch._C._DisableTorchDispatch():
        sequence = torch.tensor(tokens)
        _, kinds, counts = sequence.unique(return_inverse=True, return_counts=True)
        frequency = counts[kinds]
        frequent = frequency[frequency >= MIN_REPETITIONS].unique()  # in ascending order
        for rarest in frequent[:MAX_FREQUENCIES].tolist():  # the rarest may be in no step
            gaps = {int(gap) for kind in (counts == rarest).nonzero().flatten()[:MAX_CANDIDATES]
                    for gap in (kinds == kind).nonzero().flatten().diff()}
            for size in sorted(gaps)[:MAX_CANDIDATES]:
                start, length = longest(sequence[size:] == sequence[:-size])
                count = (length + size) // size
                if count >= MIN_REPETITIONS and 2 * count * size >= len(tokens):
                    return start, size, count
    return None


def longest(same: torch.Tensor) -> tuple[int, int]:
    """Return the start and the length of the longest run of True in a vector."""
    breaks = (~same).nonzero().flatten().tolist()
    edges = [-1, *breaks, len(same)]
    length, before = max((after - before - 1, -before)
                         for before, after in itertools.pairwise(edges))
    return 1 - before, length
