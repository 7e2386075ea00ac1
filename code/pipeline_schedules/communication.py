"""Adds sends and receives to a schedule, in an order on which both peers agree.

Messages carry no names (NCCL ignores tags), so peers that disagree on the order swap tensors
without an error, or wait for each other for ever. Two things prevent that here. Every direction and
chunk has a channel of its own: with two stages the previous and the next rank are one, and its
activations and gradients must not meet. And all messages of all stages are put in one order, that
of a simulated run; each stage's list is its part of it. So even if every send waited until its
receive is reached, the first message that is not through yet could always go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline_schedules.actions import Action, Place, count_chunks, needs
from pipeline_schedules.simulation import Durations, run_order, simulate

SEND, RECEIVE = "send", "receive"


class Channel(NamedTuple):
    """A queue between two stages: what is sent first is received first."""

    kind: str  # F: activations, B: gradients
    source: int
    target: int
    chunk: int  # of the source


@dataclass(frozen=True)
class Message:
    """One end of the transfer of what `action` computed on stage `source`.

    end: SEND, in the list of stage `source`, or RECEIVE, in that of stage `target`.
    """

    end: str
    action: Action
    source: int
    target: int

    @property
    def channel(self) -> Channel:
        return Channel(self.action.kind, self.source, self.target, self.action.chunk)

    def __str__(self) -> str:
        other = f"to {self.target}" if self.end == SEND else f"from {self.source}"
        return f"{self.end} {self.action} {other}"


Program = list[list[Action | Message]]


def add_communication(schedule: Sequence[Sequence[Action]],
                      durations: Durations | None = None) -> Program:
    """Per stage: its actions, with every message that it sends or receives in between.

    A receive stands where the message is there if actions take as long as `durations` says, so it
    may be posted when the list comes to it and waited for where its tensor is used. A send needs
    no waiting. Raises ScheduleError for a schedule that check() refuses.
    """
    timeline = simulate(schedule, durations)
    when = {(stage, Action(*span[:3])): span
            for stage, spans in timeline.spans.items() for span in spans}
    stages, chunks = len(schedule), count_chunks(schedule)
    events = []
    order = {place: number for number, place in enumerate(run_order(schedule))}
    for place in order:
        events.append((when[place].start, order[place], 0, place, None))
        for source in _transfers(place, stages, chunks):
            # After its producer also where that takes no time, before everything that needs it.
            events.append((when[source].end, order[source], 1, source, place[0]))
    program: Program = [[] for _ in range(stages)]
    for *_, (stage, action), target in sorted(events, key=lambda event: event[:3]):
        if target is None:
            program[stage].append(action)
        else:
            program[stage].append(Message(SEND, action, stage, target))
            program[target].append(Message(RECEIVE, action, stage, target))
    return program


def _transfers(place: Place, stages: int, chunks: int) -> list[Place]:
    """What `place` needs from other stages, and who has it."""
    return [needed for needed in needs(*place, stages, chunks) if needed[0] != place[0]]
