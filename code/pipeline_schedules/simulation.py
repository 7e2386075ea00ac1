"""Timelines: the spans of every stage's actions, simulated or recorded, and their bubble."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import NamedTuple

from pipeline_schedules.actions import Action, ScheduleError
from pipeline_schedules.activations import peak_live
from pipeline_schedules.clock import Durations, ScheduleClock
from pipeline_schedules.interpreter import replay
from pipeline_schedules.pairs import Times, paired_times
from pipeline_schedules.parsing import well_formed
from pipeline_schedules.validation import check


class Span(NamedTuple):
    """An action with its start and end times."""

    kind: str
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The times at which every stage ran its actions, simulated or recorded.

    Attributes:
        spans: {stage: its spans, in order of time}, in any unit of time and from any origin.
    """

    spans: dict[int, list[Span]]

    @classmethod
    def of(cls, recorded: Mapping[int, Sequence[Sequence]]) -> Timeline:
        """Return the timeline of {stage: [(kind, micro_batch, chunk, start, end), ...]}.

        Raises:
            ScheduleError: an entry is malformed, two spans of a stage overlap, or there are none.
        """
        spans = {}
        for stage in sorted(recorded):
            spans[stage] = [_span(item, f"recorded: stage {stage}, position {position}")
                            for position, item in enumerate(recorded[stage])]
            spans[stage].sort(key=lambda span: (span.start, span.end))
            _reject_overlap(stage, spans[stage])
        if not any(spans.values()):
            raise ScheduleError("recorded: no stage has any spans")
        return cls(spans)

    @property
    def begin(self) -> float:
        return min(stage[0].start for stage in self.spans.values() if stage)

    @property
    def total(self) -> float:
        """Return the time from the first start to the last end, over all stages."""
        return max(stage[-1].end for stage in self.spans.values() if stage) - self.begin

    @property
    def longest(self) -> float:
        """Return the longest time from a stage's first start to its own last end.

        Qi et al. 2023 measure this, and not `total`: if each stage begins its next step as soon as
        it has finished this one, a step takes no longer.
        """
        return max(stage[-1].end - stage[0].start for stage in self.spans.values() if stage)

    @property
    def busy(self) -> list[float]:
        """Return the time that each stage computes."""
        return [sum(span.end - span.start for span in stage) for stage in self.spans.values()]

    @property
    def bubble_fraction(self) -> float:
        """Return idle time over total time, of all stages: (p-1)/(m+p-1) for GPipe and 1F1B."""
        total = self.total * len(self.spans)
        return (total - sum(self.busy)) / total if total else 0

    @property
    def bubble_overhead(self) -> float:
        """Return idle time over compute time, of all stages: (p-1)/m for GPipe and 1F1B.

        If stages differ in speed, this and bubble_fraction include waiting for the slowest one.
        """
        busy = sum(self.busy)
        return (self.total * len(self.spans) - busy) / busy if busy else 0

    @property
    def peak_live(self) -> list[int]:
        """Return each stage's peak number of (micro-batch, chunk) pairs in flight."""
        return peak_live([[Action(*span[:3]) for span in stage] for stage in self.spans.values()])


def simulate(schedule: Sequence[Sequence[Action]], durations: Durations | None = None) -> Timeline:
    """Return the timeline of a schedule.

    Args:
        schedule: per stage, its actions.
        durations: times of the passes; by default F, B, and W take 1, links take 0, and no passes
            overlap.

    Raises:
        ScheduleError: check() rejects the schedule, or the durations do not fit it.
    """
    check(schedule)
    durations = durations or Durations()
    spans: dict[int, list[Span]] = {stage: [] for stage in range(len(schedule))}
    for (stage, action), times in _times(schedule, durations).items():
        spans[stage].append(Span(action.kind, action.micro_batch, action.chunk, *times))
    return Timeline(spans)


def _times(schedule: Sequence[Sequence[Action]], durations: Durations) -> Times:
    if durations.pair is not None:
        return paired_times(schedule, durations)
    clock = ScheduleClock(schedule, durations)
    replay(schedule, clock)
    return {key: (start, clock.ends[key]) for key, start in clock.starts.items()}


def _span(item: Sequence, where: str) -> Span:
    try:
        span = Span(*item)
    except TypeError:
        raise ScheduleError(f"{where}: {item!r} is not (kind, micro_batch, chunk, start, end)"
                            ) from None
    well_formed(Action(*span[:3]), where)
    for time in (span.start, span.end):
        if not isinstance(time, Real) or not math.isfinite(time):
            raise ScheduleError(f"{where}: {time!r} is not a time")
    if span.end < span.start:
        raise ScheduleError(f"{where}: {_name(span)} ends at {span.end}, before its start at "
                            f"{span.start}")
    return span


def _reject_overlap(stage: int, spans: list[Span]) -> None:
    # A trace has starts and lengths; their sum may round to just above the next start.
    slack = 1e-6 * (spans[-1].end - spans[0].start) if spans else 0
    for before, after in pairwise(spans):
        if after.start < before.end - slack:
            raise ScheduleError(f"recorded: stage {stage} starts {_name(after)} at {after.start}, "
                                f"before {_name(before)} ends at {before.end}")


def _name(span: Span) -> str:
    return str(Action(*span[:3]))
