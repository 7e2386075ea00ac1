"""Adds sends and receives to a schedule, in an order on which both peers agree.

Messages carry no names (NCCL ignores tags), so peers that disagree on the order swap tensors
without an error, or wait for each other for ever. Two things prevent that here. Every direction and
chunk has a channel of its own: with two stages the previous and the next rank are one, and its
activations and gradients must not meet. And all messages of all stages are put in one order, that
of a simulated run; each stage's list is its part of it. So even if every send waited until its
receive is reached, the first message that is not through yet could always go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minimegatron.schedules.actions import NAMES, Action, Place, count_chunks, needs
from minimegatron.schedules.simulation import Durations, run_order, simulate
from minimegatron.schedules.validation import complain, find_cycle, problems

SEND, RECEIVE = "send", "receive"


class Channel(NamedTuple):
    """A queue between two stages: what is sent first is received first."""

    kind: str  # F: activations, B: gradients
    source: int
    target: int
    chunk: int  # of the source

    def __str__(self) -> str:
        return (f"channel of {NAMES[self.kind]}s of chunk {self.chunk}, "
                f"stage {self.source} to stage {self.target}")


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


def program_problems(program: Sequence[Sequence[Action | Message]], *,
                     sends_wait: bool = True) -> list[str]:
    """Everything that is wrong with a schedule that has its messages, one sentence each.

    sends_wait: a send takes until its receive is reached (the safe reading: NCCL's, and that of
    large tensors anywhere); False: sends are buffered and only receives wait.
    """
    found = problems([[item for item in items if isinstance(item, Action)] for items in program])
    if not found:
        found = _every_message_once(program)
    if not found:
        found = _messages_and_actions(program)
    return found or _both_ends_agree(program) or _deadlock(program, sends_wait)


def check_program(program: Sequence[Sequence[Action | Message]], *, sends_wait: bool = True,
                  source: str = "schedule") -> None:
    """Raise ScheduleError with the first few of program_problems()."""
    complain(program_problems(program, sends_wait=sends_wait), source)


def _transfers(place: Place, stages: int, chunks: int) -> list[Place]:
    """What `place` needs from other stages, and who has it."""
    return [needed for needed in needs(*place, stages, chunks) if needed[0] != place[0]]


def _expected(program: Sequence[Sequence[Action | Message]]) -> dict[Message, Action]:
    """Both ends of every message that the actions ask for, and the action that asks."""
    schedule = [[item for item in items if isinstance(item, Action)] for items in program]
    stages, chunks, found = len(schedule), count_chunks(schedule), {}
    for stage, actions in enumerate(schedule):
        for action in actions:
            for source, made in _transfers((stage, action), stages, chunks):
                for end in (SEND, RECEIVE):
                    found[Message(end, made, source, stage)] = action
    return found


def _every_message_once(program: Sequence[Sequence[Action | Message]]) -> list[str]:
    found, expected = [], _expected(program)
    for stage, items in enumerate(program):
        times = Counter(item for item in items if isinstance(item, Message))
        for message, number in times.items():
            if message not in expected or stage != _holder(message):
                found.append(f"stage {stage}: nobody needs `{message}`; "
                             f"{_what_is_needed(expected, stage, message)}")
            elif number > 1:
                found.append(f"stage {stage}: `{message}` stands there {number} times; its peer "
                             "expects one")
        for message, action in expected.items():
            if stage == _holder(message) and message not in times:
                needer = "it" if message.end == RECEIVE else f"stage {message.target}"
                found.append(f"stage {stage}: `{message}` is missing; {needer} needs it for "
                             f"{action}")
    return found


def _holder(message: Message) -> int:
    return message.source if message.end == SEND else message.target


def _what_is_needed(expected: dict[Message, Action], stage: int, message: Message) -> str:
    same = [str(other) for other in expected
            if _holder(other) == stage and (other.end, other.action) == (message.end,
                                                                         message.action)]
    return f"`{same[0]}` is" if same else "the work of this pipeline does not ask for it"


def _messages_and_actions(program: Sequence[Sequence[Action | Message]]) -> list[str]:
    """Sends before there is something to send, receives after their tensor was needed."""
    found, expected = [], _expected(program)
    for stage, items in enumerate(program):
        place = {item: position for position, item in enumerate(items)}
        for message, position in place.items():
            if not isinstance(message, Message):
                continue
            if message.end == SEND and place[message.action] > position:
                found.append(f"stage {stage}: `{message}` (position {position}) stands before "
                             f"{message.action} (position {place[message.action]}): there is "
                             "nothing to send yet")
            user = expected[message]
            if message.end == RECEIVE and place[user] < position:
                found.append(f"stage {stage}: `{message}` (position {position}) stands after "
                             f"{user} (position {place[user]}), which needs it")
    return found


def _both_ends_agree(program: Sequence[Sequence[Action | Message]]) -> list[str]:
    ends: dict[Channel, dict[str, list[Action]]] = {}
    for items in program:
        for item in items:
            if isinstance(item, Message):
                both = ends.setdefault(item.channel, {SEND: [], RECEIVE: []})
                both[item.end].append(item.action)
    found = []
    for channel, both in sorted(ends.items()):
        pairs = zip(both[SEND], both[RECEIVE], strict=True)
        wrong = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if wrong:
            found.append(f"the two ends disagree ({channel}): where stage {channel.source} sends "
                         f"{wrong[0]}, stage {channel.target} expects {wrong[1]}. Messages carry "
                         "no names: it would compute with the wrong tensor")
    return found


def _deadlock(program: Sequence[Sequence[Action | Message]], sends_wait: bool) -> list[str]:
    """Run it without a clock, as far as it goes; then say who waits for whom."""
    heads, sent = [0] * len(program), set()
    waiting: dict[int, int] = {}
    moved = True
    while moved:
        moved, waiting = False, {}
        for stage, items in enumerate(program):
            while heads[stage] < len(items):
                item = items[heads[stage]]
                if isinstance(item, Message):
                    if item.end == SEND and (not sends_wait or _reached(program, heads, item)):
                        sent.add((item.action, item.source, item.target))
                    if (item.action, item.source, item.target) not in sent:
                        waiting[stage] = item.target if item.end == SEND else item.source
                        break
                heads[stage] += 1
                moved = True
    if not waiting:
        return []
    said = []
    for stage in find_cycle(waiting):
        said.append(f"stage {stage} is at `{program[stage][heads[stage]]}` (position "
                    f"{heads[stage]}) and waits for stage {waiting[stage]}")
    return ["deadlock: " + "; ".join(said) + ". Nobody gets to what the other waits for"]


def _reached(program: Sequence[Sequence[Action | Message]], heads: list[int], send: Message
             ) -> bool:
    """Whether the receiver is at the receive that belongs to this send."""
    items, head = program[send.target], heads[send.target]
    return head < len(items) and items[head] == Message(RECEIVE, send.action, send.source,
                                                        send.target)
