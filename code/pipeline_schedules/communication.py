"""Add sends and receives to a schedule, in an order on which both peers agree.

Messages carry no names (NCCL ignores tags), so peers that disagree on their order exchange the
wrong tensors without an error or a deadlock. Two rules prevent that. First, every direction and
chunk has a queue of its own: with two stages the previous and the next rank are the same, and its
activations and gradients must not mix. Second, all messages of all stages are sorted into one
order, that of a simulated run, and each stage's list is its part of it. So even if every send
blocked until its receive is reached, the earliest unfinished message could always proceed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    StageAction,
    VShaped,
    splits_backward,
)
from pipeline_schedules.interpreter import Handler, replay
from pipeline_schedules.messages import RECEIVE, SEND, Message, Program


def add_communication(schedule: Sequence[Sequence[Action]], is_checked: bool = False) -> Program:
    """Return a program: per stage its actions, with the messages that it sends and receives.

    A receive is placed where its message arrives in the simulated run, so a rank posts it when it
    reaches it, and waits where an action consumes the tensor. A send follows its action and does
    not block.

    Args:
        schedule: per stage, its actions.
        is_checked: whether the schedule is known to pass check().

    Raises:
        ScheduleError: check() rejects the schedule.
    """
    if not is_checked:
        from pipeline_schedules.validation import check

        check(schedule)
    run = _SimulatedRun(schedule)
    replay(schedule, run)
    program: Program = [[] for _ in schedule]
    if isinstance(schedule, VShaped):
        program = VShaped(program)
    for _, (stage, action), target in sorted(run.events, key=lambda event: event[0]):
        if target is None:
            program[stage].append(action)
        else:
            program[stage].append(Message(SEND, action, stage, target))
            program[target].append(Message(RECEIVE, action, stage, target))
    return program


class _SimulatedRun(Handler):
    """A run in which every gradient, and every forward pass, takes one unit of time.

    Attributes:
        events: (key to sort by, stage and action, target of the message or None) of every action
            and of every message, which takes no time.
    """

    def __init__(self, schedule: Sequence[Sequence[Action]]) -> None:
        # A backward pass computes two gradients, unless W computes one of them.
        self.units = {FORWARD: 1, BACKWARD: 1 if splits_backward(schedule) else 2, WEIGHT: 1}
        self.idle_since = [0] * len(schedule)
        self.finished: dict[StageAction, tuple[int, int]] = {}  # end, and place in the replay
        self.events: list[tuple[tuple[int, int, int], StageAction, int | None]] = []

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        start, number = self.idle_since[stage], len(self.finished)
        if source is not None:
            end, sent = self.finished[source]
            # Also after a producer that takes no time, and before everything that consumes it.
            self.events.append(((end, sent, 1), source, stage))
            start = max(start, end)
        self.events.append(((start, number, 0), (stage, action), None))
        self.idle_since[stage] = start + self.units[action.kind]
        self.finished[stage, action] = self.idle_since[stage], number
