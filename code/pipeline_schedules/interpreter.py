"""The interpreter of schedules: visit every stage's items in an order in which they can run.

Everything that executes a schedule is a Handler of it: validation.py's finds deadlocks, clock.py's
computes start and end times, the layout estimator's adds up time and memory, and the trainer's
Pipeline computes tensors, each rank visiting the items of its own stage.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from pipeline_schedules.actions import (
    Action,
    ScheduleError,
    StageAction,
    VShaped,
    count_chunks,
    dependencies,
    sender,
)
from pipeline_schedules.messages import RECEIVE, SEND, Message

Item = Action | Message
StageItems = Sequence[Sequence[Item]]


class Deadlock(ScheduleError):
    """Raised if stages wait for each other; the message names each and the item it waits for."""


class Handler:
    """Reactions to a program's items. Override those that matter; the others do nothing."""

    def compute(self, stage: int, action: Action, source: StageAction | None) -> None:
        """Run an action, which consumes the result of another stage's action `source`, if any."""

    def send(self, stage: int, message: Message) -> None:
        """Start sending what `message.action` computed on `stage`."""

    def receive(self, stage: int, message: Message) -> None:
        """Post a receive on `stage`; the action that consumes the tensor waits for it."""


def replay(program: StageItems, handler: Handler) -> None:
    """Visit the items of all stages, each after everything that it depends on.

    A schedule's actions depend on each other directly. In a program with messages, an action that
    consumes another stage's result depends on both ends of its transfer. A receive depends on
    nothing: it is posted, and does not block.

    Raises:
        Deadlock: not every item can run.
    """
    state = _ReplayState(program)
    while state.runnable:
        stage, item = state.next()
        _call(handler, stage, item, state.chunks, len(program), state.v_shaped)
        state.finish(stage, item)
    if state.waiting:
        from pipeline_schedules.deadlock import explain

        raise Deadlock(explain(program, state.positions, state.waiting))


def replay_stage(items: Sequence[Item], handler: Handler, stage: int, stages: int, chunks: int
                 ) -> None:
    """Visit the items of one stage in order, as a rank does. Only its communication waits.

    The pipeline has `stages` stages of `chunks` chunks each, placed round-robin.
    """
    for item in items:
        _call(handler, stage, item, chunks, stages)


def _call(handler: Handler, stage: int, item: Item, chunks: int, stages: int,
          v_shaped: bool = False) -> None:
    if isinstance(item, Action):
        handler.compute(stage, item, sender(stage, item, stages, chunks, v_shaped))
    elif item.end == SEND:
        handler.send(stage, item)
    else:
        handler.receive(stage, item)


class _ReplayState:
    """Each stage's position in its list, and the items that stages wait for."""

    def __init__(self, program: StageItems) -> None:
        self.program, self.positions = program, [0] * len(program)
        self.chunks = count_chunks([[item for item in items if isinstance(item, Action)]
                                    for items in program])
        self.v_shaped = isinstance(program, VShaped)
        self.has_messages = any(isinstance(item, Message) for items in program for item in items)
        self.done: set[tuple[int, Item]] = set()
        # {an item that was not visited yet: the stages whose next item waits for it}
        self.waiting: dict[tuple[int, Item], list[int]] = defaultdict(list)
        self.runnable = deque(stage for stage in range(len(program)) if self._can_run(stage))

    def next(self) -> tuple[int, Item]:
        """Return the next stage that can run, and its item."""
        stage = self.runnable.popleft()
        return stage, self.program[stage][self.positions[stage]]

    def finish(self, stage: int, item: Item) -> None:
        """Advance the stage, and wake those that waited for the item."""
        self.done.add((stage, item))
        self.positions[stage] += 1
        woken = self.waiting.pop((stage, item), [])
        self.runnable.extend(other for other in sorted({stage, *woken}) if self._can_run(other))

    def _can_run(self, stage: int) -> bool:
        """Return True if the stage's next item can run; else note what it waits for."""
        position, items = self.positions[stage], self.program[stage]
        if position == len(items):
            return False
        for needed in self._needed(stage, items[position]):
            if needed not in self.done:
                self.waiting[needed].append(stage)
                return False
        return True

    def _needed(self, stage: int, item: Item) -> list[tuple[int, Item]]:
        if isinstance(item, Message):
            return [(stage, item.action)] if item.end == SEND else []
        needed: list[tuple[int, Item]] = []
        for other, action in dependencies(stage, item, len(self.program), self.chunks,
                                          self.v_shaped):
            if other == stage or not self.has_messages:
                needed.append((other, action))
            else:
                needed += [(stage, Message(RECEIVE, action, other, stage)),
                           (other, Message(SEND, action, other, stage))]
        return needed
