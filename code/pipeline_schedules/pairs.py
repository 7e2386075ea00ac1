"""Times of a schedule whose forward and backward passes overlap in pairs, as in DualPipe.

The all-to-all of one pass hides behind the computation of the other, so a pair is one pass: it
starts when the inputs of both have arrived, and both results leave at its end (DeepSeek-AI 2024,
arXiv 2412.19437, section 3.2.1). A full backward pass (in `whole`) is one pass, too. All others are
timed as in clock.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    ScheduleError,
    StageAction,
    VShaped,
    dependencies,
)
from pipeline_schedules.clock import Durations

CHUNKS = 2
Times = dict[StageAction, tuple[float, float]]


def paired_times(schedule: VShaped, durations: Durations) -> Times:
    """Return {(stage, action): (start, end)}; the actions of a pass divide its time.

    Args:
        schedule: a valid schedule with full (unsplit) backward passes.
        durations: pass times, including `pair`.

    Raises:
        ScheduleError: the schedule has no pairs.
    """
    if not getattr(schedule, "whole", ()):
        raise ScheduleError("durations: this schedule has no overlapping pairs, as dualpipev "
                            "does; leave pair out")
    stages, cost = len(schedule), durations.per_stage(len(schedule))
    single = {FORWARD: cost["forward"], BACKWARD: cost["backward"], WEIGHT: cost["weight"]}
    waiting = {stage: list(_passes(schedule, stage)) for stage in range(stages)}
    idle_since: list[float] = [0] * stages
    available: dict[StageAction, float] = {}
    times: Times = {}
    while any(waiting.values()):
        finished = len(times)
        for stage, passes in waiting.items():
            while passes:
                needed = [one for action in passes[0]
                          for one in dependencies(stage, action, stages, CHUNKS, v_shaped=True)
                          if one not in {(stage, other) for other in passes[0]}]
                if not available.keys() >= set(needed):
                    break
                run = passes.pop(0)
                start = max([idle_since[stage], *(
                    available[one] + (cost["link"][stage] if one[0] != stage else 0)
                    for one in needed)])
                lengths = [single[action.kind][stage] / CHUNKS for action in run]
                is_pair = run[0].kind == FORWARD and len(run) > 1
                length = cost["pair"][stage] / CHUNKS if is_pair else sum(lengths)
                times.update(_shared(stage, run, lengths, start, length))
                idle_since[stage] = start + length
                available.update({(stage, action): start + length for action in run})
        if len(times) == finished:
            raise ScheduleError("deadlock: passes that overlap in pairs wait for each other")
    return times


def _passes(schedule: VShaped, stage: int) -> Iterator[tuple[Action, ...]]:
    """Yield a stage's passes in order: an action, a full backward pass, or a pair."""
    actions, position = schedule[stage], 0
    whole = {at for at, (action, behind) in enumerate(pairwise(actions))
             if (stage, action) in schedule.whole
             and behind == Action(WEIGHT, action.micro_batch, action.chunk)}
    while position < len(actions):
        first, size = actions[position], 1
        if position in whole:
            size = 2
        elif (first.kind == FORWARD and position + 1 in whole
                and actions[position + 1].chunk != first.chunk):
            size = 3
        yield tuple(actions[position:position + size])
        position += size


def _shared(stage: int, run: tuple[Action, ...], lengths: list[float], start: float, length: float
            ) -> Times:
    """Divide a pass's time among its actions, in proportion to their own times."""
    total, spent, times = sum(lengths), 0, {}
    for action, own in zip(run, lengths, strict=True):
        begin = start + (length * spent / total if total else 0)
        spent += own
        times[stage, action] = begin, start + (length * spent / total if total else length)
    return times
