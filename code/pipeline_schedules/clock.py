"""Start and end times of a schedule's actions, given how long each kind of pass takes.

An action starts when its stage is idle and its input has arrived. Sending costs the sender nothing
and delays the receiver by the link's time: transfers overlap with computation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    ScheduleError,
    StageAction,
    count_chunks,
    splits_backward,
)
from pipeline_schedules.interpreter import Handler


@dataclass(frozen=True)
class Durations:
    """Time that a stage takes for one micro-batch, in any unit.

    Each attribute is one number for all stages or a list with one number per stage. The numbers
    are for a whole stage: an action of one of v chunks takes 1/v.

    Attributes:
        forward: the forward pass.
        backward: the gradient of the inputs.
        weight: the gradient of the weights. A backward that is not split takes
            `backward` + `weight`.
        link: time from the end of an action to the earliest start of an action on another stage
            that consumes its result; in a list, by receiving stage.
        pair: a forward pass of one chunk overlapped with the full backward pass of the other, as in
            DualPipeV. With None, they run back to back, and a gradient is sent before W.
    """

    forward: float | Sequence[float] = 1
    backward: float | Sequence[float] = 1
    weight: float | Sequence[float] = 1
    link: float | Sequence[float] = 0
    pair: float | Sequence[float] | None = None

    def per_stage(self, stages: int) -> dict[str, list[float]]:
        """Return {attribute: one number per stage}.

        Raises:
            ScheduleError: a list has the wrong length, or a number is not a length of time.
        """
        numbers = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            values = [value] * stages if isinstance(value, Real) else value
            if not isinstance(values, list | tuple) or len(values) != stages:
                raise ScheduleError(f"durations: {field.name} is one number or a list of {stages}, "
                                    f"one per stage, not {value!r}")
            for number in values:
                if isinstance(number, bool) or not isinstance(number, Real) or not (
                        math.isfinite(number) and number >= 0):
                    raise ScheduleError(f"durations: {field.name} has {number!r}, which is not a "
                                        "length of time; give numbers of at least 0")
            numbers[field.name] = list(values)
        return numbers


class ScheduleClock(Handler):
    """Times of the actions of a schedule.

    Attributes:
        starts: the start time of each (stage, action), in the order of replay.
        ends: the end time of each (stage, action).
    """

    def __init__(self, schedule: Sequence[Sequence[Action]], durations: Durations) -> None:
        stages = len(schedule)
        cost, self.chunks = durations.per_stage(stages), count_chunks(schedule)
        if not splits_backward(schedule):
            cost["backward"] = [inputs + weights for inputs, weights in zip(
                cost["backward"], cost["weight"], strict=True)]
        self.times = {FORWARD: cost["forward"], BACKWARD: cost["backward"], WEIGHT: cost["weight"]}
        self.link = cost["link"]
        self.idle_since: list[float] = [0] * stages
        self.starts: dict[StageAction, float] = {}
        self.ends: dict[StageAction, float] = {}

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        start = self.idle_since[stage]
        if source is not None:
            start = max(start, self.ends[source] + self.link[stage])
        # One chunk is not divided, so that integers and fractions stay exact.
        length = self.times[action.kind][stage]
        end = start + (length / self.chunks if self.chunks > 1 else length)
        self.starts[stage, action] = start
        self.ends[stage, action] = self.idle_since[stage] = end
