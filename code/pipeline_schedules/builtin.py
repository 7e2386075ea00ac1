"""The published schedules of one chunk per stage with an unsplit backward: GPipe and 1F1B.

low_bubble.py has those with a smaller bubble.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline_schedules.actions import BACKWARD, FORWARD, Action, Schedule, ScheduleError


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
    at_least_one(stages=stages, micro_batches=micro_batches)
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
    at_least_one(stages=stages, micro_batches=micro_batches)
    numbers = range(micro_batches)
    forwards = [Action(FORWARD, k) for k in numbers]
    backwards = [Action(BACKWARD, k) for k in numbers]
    return [alternate(forwards, backwards, warm_up=min(stages - stage - 1, micro_batches))
            for stage in range(stages)]


WHOLE_STAGES: dict[str, Callable[..., Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """Return `warm_up` forwards, then one forward and one backward in turn, then the cool-down."""
    actions = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        actions += [forward, backward]
    return actions + backwards[len(forwards) - warm_up:]


def at_least_one(**numbers: int) -> None:
    """Raise ScheduleError for an argument that is not an integer of at least 1."""
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(f"{name.replace('_', '-')}: {value!r} should be an integer of "
                                "at least 1")
