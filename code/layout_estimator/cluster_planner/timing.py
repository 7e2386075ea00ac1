"""The time of a step: an event simulation of the pipeline schedule, and then the step's end.

Many partitions are simulated at once: every quantity is an array over the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from layout_estimator.cluster_planner.stages import Stages
from pipeline_schedules import BUILT_IN, FORWARD, Action, Handler, replay
from pipeline_schedules.actions import StageAction


class Event(NamedTuple):
    """A pass of a schedule, in an order in which all passes can run.

    Attributes:
        stage: where it runs.
        forward: whether it is a forward pass.
        source: the event whose result it receives from another stage, or None.
    """

    stage: int
    forward: bool
    source: int | None


class _Recorder(Handler):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.number: dict[StageAction, int] = {}

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        self.number[stage, action] = len(self.events)
        received = None if source is None else self.number[source]
        self.events.append(Event(stage, action.kind == FORWARD, received))


@lru_cache(maxsize=256)
def events(schedule: str, stages: int, micro_batches: int) -> tuple[Event, ...]:
    """Return the passes of a schedule."""
    recorder = _Recorder()
    replay(BUILT_IN[schedule](stages, micro_batches), recorder)
    return tuple(recorder.events)


def step_seconds(stages: Stages, splits: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the simulated time of a step, in seconds, for each of several partitions.

    A pass starts when its stage is idle and its input has arrived; sends overlap with passes. After
    its last pass, a stage all-reduces its gradients; the optimizer waits for all stages, because it
    clips by the norm of all gradients.

    Args:
        stages: costs of the stages.
        splits: the partitions, [c, p] layers.
    """
    layers = np.asarray(splits, dtype=int)
    rows = np.arange(layers.shape[1])
    ready = _ends(stages, layers)
    if len(rows) > 1 and stages.ends:
        joined = np.maximum(ready[:, 0], ready[:, -1]) + stages.ends
        ready[:, 0] = ready[:, -1] = joined
    ready = ready + stages.sync[rows, layers]
    return ready.max(axis=1) + stages.update[rows, layers].max(axis=1)


def _ends(stages: Stages, layers: np.ndarray) -> np.ndarray:
    """Return when each stage finishes its last pass, in seconds, [c, p]."""
    rows = np.arange(layers.shape[1])
    times = (stages.backward[rows, layers].T, stages.forward[rows, layers].T)
    order = events(stages.schedule, layers.shape[1], stages.micro_batches)
    if len(layers) == 1:  # plain floats are faster than arrays of one element
        found = _run(order, [time[:, 0].tolist() for time in times], stages.send.tolist(), 0.0, max)
        return np.array([found])
    zero = np.zeros(len(layers))
    return np.array(_run(order, times, stages.send, zero, np.maximum)).T


def _run(order: Sequence[Event], times: Sequence, send: Sequence, zero: object, later) -> list:
    free, ends = [zero] * len(times[0]), []
    for stage, forward, source in order:
        start = free[stage]
        if source is not None:
            start = later(start, ends[source] + send[stage - forward])
        free[stage] = start + times[forward][stage]
        ends.append(free[stage])
    return free
