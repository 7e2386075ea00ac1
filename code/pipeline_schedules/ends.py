"""When every stage of a schedule finishes, for many choices of times.

A planner asks this for thousands of partitions, and the order of the passes is the same in all of
them. So it is computed once, and every further answer only adds and compares numbers. They may also
be arrays, for many partitions at a time. simulation.py computes whole timelines, with checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pipeline_schedules.actions import Action, StageAction
from pipeline_schedules.interpreter import Handler, replay
from pipeline_schedules.low_bubble import BUILT_IN


class Pass(NamedTuple):
    """A pass of a schedule.

    Attributes:
        kind: FORWARD, BACKWARD, or WEIGHT.
        stage: where it runs.
        source: the position of the pass whose result it receives from another stage, or None.
        boundary: that it crosses: the number of the stage before it, or None.
    """

    kind: str
    stage: int
    source: int | None
    boundary: int | None


class _Recorder(Handler):
    def __init__(self) -> None:
        self.passes: list[Pass] = []
        self.number: dict[StageAction, int] = {}

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        self.number[stage, action] = len(self.passes)
        received = None if source is None else self.number[source]
        boundary = None if source is None else min(stage, source[0])
        self.passes.append(Pass(action.kind, stage, received, boundary))


@lru_cache(maxsize=256)
def passes(schedule: str, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """Return the passes of a built-in schedule, in an order in which all of them can run."""
    recorder = _Recorder()
    replay(BUILT_IN[schedule](stages, micro_batches), recorder)
    return tuple(recorder.passes)


def last_ends(order: Sequence[Pass], times: dict[str, Sequence], send: Sequence,
              later: Callable[[Any, Any], Any] = max, zero: Any = 0.0) -> list:
    """Return when each stage finishes its last pass.

    A pass starts when its stage is idle and its input has arrived; sends overlap with passes.

    Args:
        order: the passes.
        times: {kind of pass: its time on each stage}.
        send: the time of a message across the boundary behind each stage but the last.
        later: the larger of two times: numpy.maximum, if they are arrays.
        zero: the time at which all stages are idle.
    """
    free, ends = [zero] * len(next(iter(times.values()))), []
    for kind, stage, source, boundary in order:
        start = free[stage]
        if source is not None:
            start = later(start, ends[source] + send[boundary])
        free[stage] = start + times[kind][stage]
        ends.append(free[stage])
    return free
