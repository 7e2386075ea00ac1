"""A schedule on a clock: when every action starts and ends, and what the pipeline waits for.

An action starts when its stage is free and what it needs has arrived. Sending costs a stage
nothing but delays the receiver by the link's time: transfers overlap with computing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from graphlib import TopologicalSorter
from itertools import pairwise
from numbers import Real
from typing import NamedTuple

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    Place,
    ScheduleError,
    count_chunks,
    needs,
    peak_live,
    splits_backward,
    well_formed,
)
from pipeline_schedules.validation import check


@dataclass(frozen=True)
class Durations:
    """How long a stage needs for one micro-batch, in any unit of time.

    Each is a number for all stages or a list with one number per stage. They are a whole stage's:
    one of v chunks takes 1/v. A backward that is not split takes `backward` + `weight`.
    link: from the end of an action to the earliest start of what needs it on another stage; in a
    list, by the stage that receives.
    """

    forward: float | Sequence[float] = 1
    backward: float | Sequence[float] = 1  # gradient of the inputs
    weight: float | Sequence[float] = 1
    link: float | Sequence[float] = 0

    def per_stage(self, stages: int) -> dict[str, list[float]]:
        """{field: [stages] numbers}; ScheduleError names the field that does not fit."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            values = [value] * stages if isinstance(value, Real) else value
            if not isinstance(values, list | tuple) or len(values) != stages:
                raise ScheduleError(f"durations: {field.name} is one number or a list of {stages}, "
                                    f"one per stage, not {value!r}")
            for number in values:
                if isinstance(number, bool) or not isinstance(number, Real) or not (
                        math.isfinite(number) and number >= 0):
                    raise ScheduleError(f"durations: {field.name} has {number!r}, which is no "
                                        "length of time; give numbers of at least 0")
            found[field.name] = list(values)
        return found


class Span(NamedTuple):
    """One action on the clock."""

    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What every stage did when, simulated or recorded: {stage: its spans in order of time}.

    Times are in one unit, any; a recorded run's may start anywhere.
    """

    spans: dict[int, list[Span]]

    @classmethod
    def of(cls, recorded: Mapping[int, Sequence[Sequence]]) -> Timeline:
        """From {stage: [(kind, micro_batch, chunk, start, end), ...]}.

        Raises ScheduleError for what is no span, for a stage that does two things at once, and
        where nothing was recorded at all.
        """
        spans = {}
        for stage in sorted(recorded):
            spans[stage] = [_span(item, f"recorded: stage {stage}, position {position}")
                            for position, item in enumerate(recorded[stage])]
            spans[stage].sort(key=lambda span: (span.start, span.end))
            _refuse_overlap(stage, spans[stage])
        if not any(spans.values()):
            raise ScheduleError("recorded: no stage did anything")
        return cls(spans)

    @property
    def begin(self) -> float:
        return min(stage[0].start for stage in self.spans.values() if stage)

    @property
    def total(self) -> float:
        """From the first start on any stage to the last end on any."""
        return max(stage[-1].end for stage in self.spans.values() if stage) - self.begin

    @property
    def busy(self) -> list[float]:
        """Per stage: the time in which it computes."""
        return [sum(span.end - span.start for span in stage) for stage in self.spans.values()]

    @property
    def bubble_fraction(self) -> float:
        """Idle time as a share of the total, over all stages: (p-1)/(m+p-1) for GPipe, 1F1B."""
        total = self.total * len(self.spans)
        return (total - sum(self.busy)) / total if total else 0

    @property
    def bubble_overhead(self) -> float:
        """Idle time against the computing time, over all stages: (p-1)/m for GPipe and 1F1B.

        With stages of different speed both count the waiting for the slowest as well.
        """
        busy = sum(self.busy)
        return (self.total * len(self.spans) - busy) / busy if busy else 0

    @property
    def peak_live(self) -> list[int]:
        """Per stage, as actions.peak_live."""
        return peak_live([[Action(*span[:3]) for span in stage] for stage in self.spans.values()])


def simulate(schedule: Sequence[Sequence[Action]], durations: Durations | None = None) -> Timeline:
    """The timeline of a schedule; with no durations F, B and W take 1 and a link 0.

    Raises ScheduleError for a schedule that check() refuses and for durations that do not fit.
    """
    check(schedule)
    stages, chunks = len(schedule), count_chunks(schedule)
    cost = (durations or Durations()).per_stage(stages)
    if not splits_backward(schedule):
        cost["backward"] = [b + w for b, w in zip(cost["backward"], cost["weight"], strict=True)]
    times = {FORWARD: cost["forward"], BACKWARD: cost["backward"], WEIGHT: cost["weight"]}
    free: list[float] = [0] * stages
    ends: dict[Place, float] = {}
    spans: dict[int, list[Span]] = {stage: [] for stage in range(stages)}
    for stage, action in run_order(schedule):
        ready = [ends[place] + (cost["link"][stage] if place[0] != stage else 0)
                 for place in needs(stage, action, stages, chunks)]
        start = max([free[stage], *ready])
        # Without chunks nothing is divided, so that exact numbers stay exact.
        length = times[action.kind][stage]
        free[stage] = ends[stage, action] = start + (length / chunks if chunks > 1 else length)
        spans[stage].append(
            Span(action.kind, action.micro_batch, action.chunk, start, free[stage]))
    return Timeline(spans)


def run_order(schedule: Sequence[Sequence[Action]]) -> list[Place]:
    """All actions of a valid schedule in an order in which one worker could run them."""
    stages, chunks = len(schedule), count_chunks(schedule)
    graph: dict[Place, list[Place]] = {}
    for stage, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            before = [(stage, actions[position - 1])] if position else []
            graph[stage, action] = before + needs(stage, action, stages, chunks)
    return list(TopologicalSorter(graph).static_order())


def _span(item: Sequence, where: str) -> Span:
    try:
        span = Span(*item)
    except TypeError:
        raise ScheduleError(f"{where}: {item!r} is not (kind, micro_batch, chunk, start, end)"
                            ) from None
    well_formed(Action(*span[:3]), where)
    for time in (span.start, span.end):
        if not isinstance(time, Real) or not math.isfinite(time):
            raise ScheduleError(f"{where}: {time!r} is no time")
    if span.end < span.start:
        raise ScheduleError(f"{where}: {_name(span)} ends at {span.end}, before its start at "
                            f"{span.start}")
    return span


def _refuse_overlap(stage: int, spans: list[Span]) -> None:
    # A start plus a length, as traces have it, may round to just above the next start.
    slack = 1e-6 * (spans[-1].end - spans[0].start) if spans else 0
    for one, two in pairwise(spans):
        if two.start < one.end - slack:
            raise ScheduleError(f"recorded: stage {stage} starts {_name(two)} at {two.start}, "
                                f"before {_name(one)} ends at {one.end}")


def _name(span: Span) -> str:
    return str(Action(*span[:3]))
