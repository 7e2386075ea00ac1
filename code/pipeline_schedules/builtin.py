"""Published schedules, as functions of the number of stages and of micro-batches."""

from __future__ import annotations

from collections.abc import Callable

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
)


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Return GPipe (Huang et al. 2019, section 2.2, figure 2c): all forwards, then all backwards.

    The backwards run from the last micro-batch to the first, as in the paper's figure. Every stage
    stores the activations of all micro-batches.

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.

    Raises:
        ScheduleError: a number is below 1.
    """
    _at_least_one(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    return [[Action(FORWARD, k) for k in numbers] + [Action(BACKWARD, k) for k in reversed(numbers)]
            for _ in range(stages)]


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Return 1F1B with a flush (PipeDream-Flush; Narayanan et al. 2021, section 2.2.1, figure 4).

    A stage warms up with one forward for each later stage, alternates one forward and one backward
    in the steady state, and cools down with the remaining backwards. Its bubble equals GPipe's, but
    at most `stages - stage` micro-batches are in flight. With one stage this is plain gradient
    accumulation: F0 B0 F1 B1 ...

    Args:
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.

    Raises:
        ScheduleError: a number is below 1.
    """
    _at_least_one(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    forwards = [Action(FORWARD, k) for k in numbers]
    backwards = [Action(BACKWARD, k) for k in numbers]
    return [_alternate(forwards, backwards, warm_up=min(stages - stage - 1, micro_batches))
            for stage in range(stages)]


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
    _at_least_one(stages=stages, micro_batches=micro_batches, chunks=chunks)
    if chunks == 1:
        return one_f_one_b(stages, micro_batches)
    if micro_batches % stages:
        lower = micro_batches // stages * stages
        near = f"{lower} or {lower + stages}" if lower else f"{stages}"
        raise ScheduleError(f"interleaved: {micro_batches} micro-batches are not divisible by "
                            f"{stages} stages; take {near}")
    pairs = [(group + k, chunk) for group in range(0, micro_batches, stages)
             for chunk in range(chunks) for k in range(stages)]
    forwards = [Action(FORWARD, k, chunk) for k, chunk in pairs]
    backwards = [Action(BACKWARD, k, chunks - 1 - chunk) for k, chunk in pairs]
    schedule = []
    for stage in range(stages):
        warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
        if micro_batches == stages:
            warm_up = len(forwards)
        schedule.append(_alternate(forwards, backwards, min(warm_up, len(forwards))))
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
    _at_least_one(stages=stages, micro_batches=micro_batches)
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


BUILT_IN: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved, "zb-h1": zb_h1}


def _alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """Return `warm_up` forwards, then one forward and one backward in turn, then the cool-down."""
    actions = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        actions += [forward, backward]
    return actions + backwards[len(forwards) - warm_up:]


def _at_least_one(**numbers: int) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(f"{name.replace('_', '-')}: {value!r} should be an integer of "
                                "at least 1")
