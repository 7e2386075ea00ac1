"""A schedule is data: for every pipeline stage, the ordered list of what it computes.

It holds compute actions only; what is sent and received follows from it. Virtual stages are dealt
out round robin (Narayanan et al. 2021, section 2.2.2): chunk c of stage s is virtual stage
c * stages + s, so the layers pass every stage once per chunk.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradient"}
TOKEN = re.compile(r"([FBW])([0-9]{1,6})(?:\.([0-9]{1,6}))?")


class ScheduleError(Exception):
    """A schedule, or its file, that cannot be used; the text says where and why."""


@dataclass(frozen=True)
class Action:
    """Run `kind` for one micro-batch on one chunk of this stage's layers.

    kind: F forward, B backward, W weight gradient. In a schedule with W, B computes the gradient
    of the inputs only; in one without, B computes both.
    """

    kind: str
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}" + (f".{self.chunk}" if self.chunk else "")


Schedule = list[list[Action]]
Place = tuple[int, Action]  # an action and the stage that runs it


def splits_backward(schedule: Sequence[Sequence[Action]]) -> bool:
    """Whether the weight gradients are actions of their own."""
    return any(action.kind == WEIGHT for actions in schedule for action in actions)


def count_chunks(schedule: Sequence[Sequence[Action]]) -> int:
    """Chunks per stage: one more than the highest number in the schedule."""
    return 1 + max((action.chunk for actions in schedule for action in actions), default=0)


def needs(stage: int, action: Action, stages: int, chunks: int) -> list[Place]:
    """What must be finished before this action can start, on this stage and on others.

    F needs F of the virtual stage before it, B needs its own F and B of the virtual stage behind
    it, W needs its own B.
    """
    k, virtual = action.micro_batch, action.chunk * stages + stage
    if action.kind == WEIGHT:
        return [(stage, Action(BACKWARD, k, action.chunk))]
    step = -1 if action.kind == FORWARD else 1
    found = [] if action.kind == FORWARD else [(stage, Action(FORWARD, k, action.chunk))]
    if 0 <= virtual + step < stages * chunks:
        chunk, neighbor = divmod(virtual + step, stages)
        found.append((neighbor, Action(action.kind, k, chunk)))
    return found


def live_activations(actions: Sequence[Action], split: bool) -> list[int]:
    """After every action: how many (micro-batch, chunk) pairs this stage keeps activations of.

    They are kept from the forward until the last action that reads them: B, or W where the
    schedule splits the backward. W reads a part of them only, so this counts from above.
    """
    last, alive, counts = WEIGHT if split else BACKWARD, 0, []
    for action in actions:
        alive += (action.kind == FORWARD) - (action.kind == last)
        counts.append(alive)
    return counts


def peak_live(schedule: Sequence[Sequence[Action]]) -> list[int]:
    """Per stage: the most (micro-batch, chunk) pairs whose activations are kept at one time.

    With v chunks a pair is 1/v of what the stage keeps for one micro-batch.
    """
    split = splits_backward(schedule)
    return [max(live_activations(actions, split), default=0) for actions in schedule]


def to_text(schedule: Sequence[Sequence[Action]]) -> list[str]:
    """The compact form, one string per stage: "F0 F1 B0 B1", chunks as "F0.1"."""
    return [" ".join(map(str, actions)) for actions in schedule]


def parse(stages: object, source: str = "schedule") -> Schedule:
    """A schedule from a list with one entry per stage: "F0 F1 B0 B1", or a list of actions.

    An action is an Action or a text such as "F0" or "F0.1". Stages and positions count from 0.
    Raises ScheduleError, which names `source`, the stage and the position.
    """
    if not isinstance(stages, list | tuple):
        raise ScheduleError(f"{source}: a schedule is a list with one entry per stage, "
                            f"this is a {type(stages).__name__}")
    return [_parse_stage(entry, f"{source}: stage {stage}") for stage, entry in enumerate(stages)]


def _parse_stage(entry: object, where: str) -> list[Action]:
    items = entry.split() if isinstance(entry, str) else entry
    if not isinstance(items, list | tuple):
        raise ScheduleError(f'{where}: write its actions as a text, "F0 B0", or as a list, '
                            f"not as a {type(entry).__name__}")
    return [_parse_action(item, f"{where}, position {position}")
            for position, item in enumerate(items)]


def _parse_action(item: object, where: str) -> Action:
    if isinstance(item, Action):
        return well_formed(item, where)
    match = TOKEN.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        raise ScheduleError(f"{where}: {item!r} is no action; write F, B or W, then the number of "
                            'the micro-batch, and the chunk if there are several: "F0", "B3", '
                            '"F0.1"')
    return Action(match[1], int(match[2]), int(match[3] or 0))


def well_formed(action: Action, where: str) -> Action:
    """The action, if its kind is known and its numbers are whole; else ScheduleError."""
    if not isinstance(action.kind, str) or action.kind not in NAMES:
        raise ScheduleError(f"{where}: an action's kind is F, B or W, not {action.kind!r}")
    for name in ("micro_batch", "chunk"):
        value = getattr(action, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ScheduleError(f"{where}: {name} is a whole number, not {value!r}")
    return action
