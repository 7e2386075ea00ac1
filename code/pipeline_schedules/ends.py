"""When every stage of a schedule finishes, for many choices of times.

A planner asks this for thousands of partitions, and the order of the passes is the same in all of
them. So it is computed once, and every further answer only adds and compares numbers. simulation.py
computes whole timelines, with checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pipeline_schedules.actions import BACKWARD, FORWARD, Action
from pipeline_schedules.low_bubble import BUILT_IN


class Pass(NamedTuple):
    """A pass of a schedule.

    Attributes:
        kind: FORWARD, BACKWARD, or WEIGHT.
        stage: where it runs.
        source: the position of the pass whose result it receives from another stage, or None.
        boundary: that it crosses, or None: the number of the stage before it. The last stage's
            boundary leads back to the first stage, for schedules with several chunks.
        chunk: its model chunk on the stage.
    """

    kind: str
    stage: int
    source: int | None
    boundary: int | None
    chunk: int = 0


@lru_cache(maxsize=256)
def passes(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> tuple[Pass, ...]:
    """Return the passes of a built-in schedule, in an order in which all of them can run.

    The interpreter would find one, too, but looks up every dependency of every action.

    Args:
        schedule: its name.
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.
        chunks: model chunks per stage.
    """
    sizes = (stages, micro_batches, chunks) if chunks > 1 else (stages, micro_batches)
    left = [deque(actions) for actions in BUILT_IN[schedule](*sizes)]
    order: list[Pass] = []
    done: dict[tuple[str, int, int], int] = {}  # (kind, micro-batch, virtual stage): position
    runnable = deque(range(stages))
    while runnable:
        stage = runnable.popleft()
        while left[stage]:
            action = left[stage][0]
            virtual = action.chunk * stages + stage
            before = _sender(action, virtual, stages * chunks)
            source = None if before is None else done.get((action.kind, action.micro_batch, before))
            if before is not None and source is None:
                break
            left[stage].popleft()
            boundary = None if before is None else min(virtual, before) % stages
            done[action.kind, action.micro_batch, virtual] = len(order)
            order.append(Pass(action.kind, stage, source, boundary, action.chunk))
            for neighbor in ((stage + 1) % stages, (stage - 1) % stages):
                if neighbor not in runnable:
                    runnable.append(neighbor)
    return tuple(order)


def _sender(action: Action, virtual: int, count: int) -> int | None:
    """Return the virtual stage whose result an action of this virtual stage receives, or None."""
    if action.kind == FORWARD:
        return virtual - 1 if virtual else None
    return virtual + 1 if action.kind == BACKWARD and virtual + 1 < count else None


def last_ends(order: Sequence[Pass], times: dict[str, Sequence[float]], send: Sequence[float]
              ) -> list[float]:
    """Return when each stage finishes its last pass.

    A pass starts when its stage is idle and its input has arrived; sends overlap with passes.

    Args:
        order: the passes, of stages with one chunk.
        times: {kind of pass: its time on each stage}.
        send: the time of a message across the boundary behind each stage.
    """
    free, ends = [0.0] * len(next(iter(times.values()))), []
    for kind, stage, source, boundary, _ in order:
        start = free[stage]
        if source is not None:
            arrival = ends[source] + send[boundary]
            if arrival > start:  # max() takes longer than all the rest
                start = arrival
        free[stage] = start + times[kind][stage]
        ends.append(free[stage])
    return free
