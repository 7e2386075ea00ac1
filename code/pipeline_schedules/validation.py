"""Check that a schedule is complete, in order, free of deadlock, and within its memory limit.

Stages, and positions in a stage's list, count from 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    NAMES,
    WEIGHT,
    Action,
    ScheduleError,
    VShaped,
    dependencies,
    splits_backward,
)
from pipeline_schedules.activations import live_activations
from pipeline_schedules.interpreter import Deadlock, Handler, replay

Lists = Sequence[Sequence[Action]]
MAX_SHOWN = 5  # problems in one error message; more would hide the first


def check(schedule: Lists, *, stages: int | None = None, micro_batches: int | None = None,
          chunks: int | None = None, max_live: int | Sequence[int] | None = None,
          v_shaped: bool | None = None, source: str = "schedule") -> None:
    """Raise an error with the first few of problems().

    Args:
        schedule: per stage, its actions.
        stages: as for problems().
        micro_batches: as for problems().
        chunks: as for problems().
        max_live: as for problems().
        v_shaped: as for problems().
        source: the file or flag that the error names.

    Raises:
        ScheduleError: there is a problem.
    """
    errors = problems(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks,
                      max_live=max_live, v_shaped=v_shaped)
    if errors:
        text = "\n  ".join(errors[:MAX_SHOWN])
        if len(errors) > MAX_SHOWN:
            text += f"\n  and {len(errors) - MAX_SHOWN} more"
        raise ScheduleError(f"{source}: {text}")


def problems(schedule: Lists, *, stages: int | None = None, micro_batches: int | None = None,
             chunks: int | None = None, max_live: int | Sequence[int] | None = None,
             v_shaped: bool | None = None) -> list[str]:
    """Return every problem of a schedule, one sentence each; [] for a valid one.

    Order and deadlock are checked only if no action is missing: a missing one would be reported
    twice.

    Args:
        schedule: per stage, its actions.
        stages: the number of pipeline stages; by default, that of the lists.
        micro_batches: micro-batches per step; by default, one more than the highest in the
            schedule.
        chunks: model chunks per stage; by default, one more than the highest in the schedule.
        max_live: the most (micro-batch, chunk) pairs that may be in flight on a stage, one number
            or one per stage.
        v_shaped: whether its chunks must be placed in a V, or must not; by default, both will do.
    """
    errors = _placement(schedule, v_shaped) or _shape(schedule, stages)
    if errors:
        return errors
    every = [action for actions in schedule for action in actions]
    if micro_batches is None:
        micro_batches = 1 + max(action.micro_batch for action in every)
    if chunks is None:
        chunks = 1 + max(action.chunk for action in every)
    errors = _numbers(schedule, micro_batches, chunks)
    if not errors:
        errors = _completeness(schedule, micro_batches, chunks)
    if not errors:
        errors = _order_on_a_stage(schedule, chunks) or _deadlock(schedule)
        if max_live is not None:
            errors = errors + _memory(schedule, max_live)
    return errors


def _placement(schedule: Lists, v_shaped: bool | None) -> list[str]:
    if v_shaped is None or v_shaped == isinstance(schedule, VShaped):
        return []
    return ["its chunks are placed round-robin, but they must be placed in a V" if v_shaped else
            "its chunks are placed in a V, which only simulations support; the nearest that works "
            "is zb-h1"]


def _shape(schedule: Lists, stages: int | None) -> list[str]:
    if not schedule:
        return ["it has no stages: write one list of actions per stage"]
    if stages is not None and len(schedule) != stages:
        return [f"it has lists for {_count(len(schedule), 'stage')}, but the pipeline has "
                f"{stages}"]
    return [f"stage {stage} does nothing: its list is empty"
            for stage, actions in enumerate(schedule) if not actions]


def _numbers(schedule: Lists, micro_batches: int, chunks: int) -> list[str]:
    errors = []
    for stage, actions in enumerate(schedule):
        for position, action in enumerate(actions):
            where = f"stage {stage}, position {position}: {action}"
            if action.kind not in NAMES:
                errors.append(f"{where} is of kind {action.kind!r}; the kinds are F, B, and W")
            for number, limit, noun in ((action.micro_batch, micro_batches, "micro-batch"),
                                        (action.chunk, chunks, "chunk")):
                if not 0 <= number < limit:
                    errors.append(f"{where} asks for {noun} {number}, but this is a schedule of "
                                  f"{_count(limit, noun)}, counted from 0")
    return errors


MISSING = {
    FORWARD: "stage {stage} never runs {action}: micro-batch {k} stops there",
    BACKWARD: "stage {stage} never runs {action}: every forward needs its backward, or the gradient"
              " of micro-batch {k} is lost",
    WEIGHT: "stage {stage} never runs {action}: where a schedule has W, every B needs one, or these"
            " weights get no gradient from micro-batch {k}",
}


def _count(number: int, noun: str) -> str:
    many = noun + ("es" if noun.endswith("h") else "s")
    return f"{number} {noun if number == 1 else many}"


def _completeness(schedule: Lists, micro_batches: int, chunks: int) -> list[str]:
    kinds = [FORWARD, BACKWARD] + [WEIGHT] * splits_backward(schedule)
    every = [action for actions in schedule for action in actions]
    used = sorted({action.micro_batch for action in every})
    errors = (_unused(set(used), micro_batches, "micro-batch")
              or _unused({action.chunk for action in every}, chunks, "chunk"))
    if errors:  # probably one wrong number, which one error per stage would hide
        return errors
    for stage, actions in enumerate(schedule):
        times = Counter(actions)
        errors += [f"stage {stage} runs {action} {number} times instead of once"
                   for action, number in times.items() if number > 1]
        for kind in kinds:
            expected = [Action(kind, k, chunk) for k in used for chunk in range(chunks)]
            errors += [MISSING[kind].format(stage=stage, action=action, k=action.micro_batch)
                       for action in expected if action not in times]
    return errors


def _unused(used: set[int], limit: int, noun: str) -> list[str]:
    missing = list(islice((number for number in range(limit) if number not in used), 4))
    if not missing:
        return []
    shown = ", ".join(map(str, missing[:3])) + (", ..." if len(missing) > 3 else "")
    return [f"no stage runs {noun} {shown} of {_count(limit, noun)}, counted from 0"]


def _order_on_a_stage(schedule: Lists, chunks: int) -> list[str]:
    """Return the actions that come before a dependency on the same stage."""
    errors, v_shaped = [], isinstance(schedule, VShaped)
    for stage, actions in enumerate(schedule):
        positions = {action: position for position, action in enumerate(actions)}
        for position, action in enumerate(actions):
            for other, needed in dependencies(stage, action, len(schedule), chunks,
                                              v_shaped):
                if other == stage and positions[needed] > position:
                    errors.append(f"stage {stage} runs {action} (position {position}) before "
                                  f"{needed} (position {positions[needed]}), which it needs: "
                                  f"{_dependency_reason(action, needed)}")
    return errors


def _dependency_reason(action: Action, needed: Action) -> str:
    if action.kind == WEIGHT:
        return "a weight gradient uses the gradient that the backward computes"
    if action.kind == BACKWARD and needed.kind == FORWARD:
        return "a backward pass reads the activations that its forward pass saved"
    if action.kind == FORWARD:
        return "a chunk's input is the output of the chunk before it"
    return "a chunk's gradient comes from the chunk after it"


def _deadlock(schedule: Lists) -> list[str]:
    try:
        replay(schedule, Handler())
    except Deadlock as error:
        return [str(error)]
    return []


def _memory(schedule: Lists, max_live: int | Sequence[int]) -> list[str]:
    split = splits_backward(schedule)
    limits = [max_live] * len(schedule) if isinstance(max_live, int) else max_live
    errors = []
    for stage, (actions, limit) in enumerate(zip(schedule, limits, strict=True)):
        in_flight = live_activations(actions, split)
        peak = max(in_flight)
        if peak > limit:
            first_over = next(i for i, number in enumerate(in_flight) if number > limit)
            errors.append(f"stage {stage} keeps up to {peak} activations at once, but has room for "
                          f"{limit}: {actions[first_over]} (position {first_over}) is the first "
                          f"beyond the limit. Run {'a W' if split else 'a backward'} before it")
    return errors
