"""Published schedules with a smaller bubble than 1F1B: interleaved chunks, or a split backward."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
)
from pipeline_schedules.builtin import WHOLE_STAGES, alternate, at_least_one, one_f_one_b
from pipeline_schedules.v_shaped import V_SHAPED


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Return interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): several chunks per stage.

    Groups of `stages` micro-batches go through chunk 0, then the same group through chunk 1, and
    so on; backwards mirror that. A stage warms up with 2 (stages - stage - 1) + (chunks - 1) stages
    forwards, or with all of them if micro_batches == stages, as Megatron-LM of 2021 does. The
    bubble is 1/chunks of 1F1B's. With one chunk this is 1F1B.

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step, divisible by `stages`.
        chunks: model chunks per stage.

    Raises:
        ScheduleError: a number is below 1, or micro_batches is not divisible by stages.
    """
    at_least_one(stages=stages, micro_batches=micro_batches, chunks=chunks)
    if chunks == 1:
        return one_f_one_b(stages, micro_batches)
    if micro_batches % stages:
        lower = micro_batches // stages * stages
        near = f"{lower} or {lower + stages}" if lower else f"{stages}"
        raise ScheduleError(f"interleaved: {micro_batches} micro-batches are not divisible by "
                            f"{stages} stages; use {near}")
    pairs = [(group + k, chunk) for group in range(0, micro_batches, stages)
             for chunk in range(chunks) for k in range(stages)]
    forwards = [Action(FORWARD, k, chunk) for k, chunk in pairs]
    backwards = [Action(BACKWARD, k, chunks - 1 - chunk) for k, chunk in pairs]
    schedule = []
    for stage in range(stages):
        warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
        if micro_batches == stages:
            warm_up = len(forwards)
        schedule.append(alternate(forwards, backwards, min(warm_up, len(forwards))))
    return schedule


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """Return ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.1, figure 3).

    This is 1F1B with the backward split: B computes the gradient of the inputs, which the previous
    stage waits for, and stage s computes the weight gradient W of a micro-batch s backwards later.
    So min(stages, micro_batches) micro-batches are in flight on every stage, which is 1F1B's peak.
    The remaining W fill the bubble at the end.

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.

    Raises:
        ScheduleError: a number is below 1.
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        actions = [Action(FORWARD, k) for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(Action(FORWARD, warm_up + k))
            actions.append(Action(BACKWARD, k))
            if k >= stage:
                actions.append(Action(WEIGHT, k - stage))
        actions += [Action(WEIGHT, k) for k in range(max(0, micro_batches - stage), micro_batches)]
        schedule.append(actions)
    return schedule


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """Return ZB-H2 (Qi et al. 2023, section 2.2): ZB-H1 with a longer warm-up, and so no bubble.

    Stage s warms up with 2 (stages - s) - 1 forwards, which fill its time until the first gradient
    arrives, and computes the weight gradient W of a micro-batch 2 s backwards later. So
    min(2 stages - 1, micro_batches) micro-batches are in flight on every stage. If F, B, and W take
    the same time and micro_batches >= 2 stages - 1, no stage waits between its first and its last
    action. But stage s begins s forwards after stage 0, and ends later: the bubble is gone only if
    stage 0 begins its next step before the last stage has finished this one.

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.

    Raises:
        ScheduleError: a number is below 1.
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    schedule = []
    for stage in range(stages):
        warm_up = min(2 * (stages - stage) - 1, micro_batches)
        actions = [Action(FORWARD, k) for k in range(warm_up)]
        for k in range(micro_batches):
            actions.append(Action(BACKWARD, k))
            if k >= 2 * stage:
                actions.append(Action(WEIGHT, k - 2 * stage))
            if warm_up + k < micro_batches:
                actions.append(Action(FORWARD, warm_up + k))
        late = range(max(0, micro_batches - 2 * stage), micro_batches)
        schedule.append(actions + [Action(WEIGHT, k) for k in late])
    return schedule


BUILT_IN: dict[str, Callable[..., Schedule]] = {
    **WHOLE_STAGES, "interleaved": interleaved, "zb-h1": zb_h1, "zb-h2": zb_h2}


def by_name(name: str, stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Return a published schedule; `load` describes the arguments.

    Raises:
        ScheduleError: there is no such schedule, or it does not fit the sizes.
    """
    if name in V_SHAPED:
        if chunks not in (1, 2):
            raise ScheduleError(f"{name} has 2 chunks per stage, not {chunks}; for more use "
                                "interleaved")
        return V_SHAPED[name](stages, micro_batches)
    if name not in BUILT_IN:
        names = [*BUILT_IN, *V_SHAPED]
        near = difflib.get_close_matches(name.lower().replace("_", "-"), names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScheduleError(f"schedule {name!r}: neither one of {', '.join(names)} nor a .py or "
                            f".json file{hint}")
    if name == "interleaved":
        return BUILT_IN[name](stages, micro_batches, chunks)
    if chunks != 1:
        raise ScheduleError(f"{name} has one chunk per stage, not {chunks}; for several use "
                            "interleaved")
    return BUILT_IN[name](stages, micro_batches)
