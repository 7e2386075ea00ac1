"""Add sends and receives to a schedule, in an order on which both peers agree.

Messages carry no names (NCCL ignores tags), so peers that disagree on their order exchange the
wrong tensors without an error or a deadlock. Two rules prevent that. First, every direction and
chunk has a channel of its own: with two stages the previous and the next rank are the same, and its
activations and gradients must not mix. Second, all messages of all stages are sorted into one
order, that of a simulated run, and each stage's list is its part of it. So even if every send
blocked until its receive is reached, the earliest unfinished message could always proceed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_schedules.actions import Action, StageAction
from pipeline_schedules.clock import Durations, ScheduleClock
from pipeline_schedules.interpreter import replay
from pipeline_schedules.messages import RECEIVE, SEND, Message, Program


def add_communication(schedule: Sequence[Sequence[Action]],
                      durations: Durations | None = None, is_checked: bool = False) -> Program:
    """Return a program: per stage its actions, with the messages that it sends and receives.

    A receive is placed where its message arrives if actions take `durations`, so a rank posts it
    when it reaches it, and waits where an action consumes the tensor. A send follows its action
    and does not block.

    Args:
        schedule: per stage, its actions.
        durations: times of the passes; by default each takes 1 and links take 0.
        is_checked: whether the schedule is known to pass check().

    Raises:
        ScheduleError: check() rejects the schedule, or the durations do not fit it.
    """
    if not is_checked:
        from pipeline_schedules.validation import check

        check(schedule)
    clock = _Events(schedule, durations or Durations())
    replay(schedule, clock)
    program: Program = [[] for _ in schedule]
    for _, (stage, action), target in sorted(clock.events, key=lambda event: event[0]):
        if target is None:
            program[stage].append(action)
        else:
            program[stage].append(Message(SEND, action, stage, target))
            program[target].append(Message(RECEIVE, action, stage, target))
    return program


class _Events(ScheduleClock):
    """A clock that lists actions and messages with their sort keys."""

    def __init__(self, schedule: Sequence[Sequence[Action]], durations: Durations) -> None:
        super().__init__(schedule, durations)
        self.numbers: dict[StageAction, int] = {}  # position in the order of replay
        self.events: list[tuple[tuple[float, int, int], StageAction, int | None]] = []

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        super().compute(stage, action, source)
        key = stage, action
        number = self.numbers[key] = len(self.numbers)
        self.events.append(((self.starts[key], number, 0), key, None))
        if source is not None:
            # Sorted after its producer, even one that takes no time, and before its consumers.
            self.events.append(((self.ends[source], self.numbers[source], 1), source, stage))
