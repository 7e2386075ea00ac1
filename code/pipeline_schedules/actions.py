"""A schedule is data: the ordered list of compute actions of every pipeline stage.

Sends and receives follow from it (communication.py). Each stage holds one or more model chunks,
usually assigned round-robin (Narayanan et al. 2021, section 2.2.2): chunk c of stage s is virtual
stage c * stages + s, so a micro-batch visits every stage once per chunk. In a VShaped schedule, a
micro-batch turns around at the last stage instead, and comes back to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradient"}


class ScheduleError(Exception):
    """Raised for an invalid schedule or schedule file; the message names the place and the reason.
    """


@dataclass(frozen=True)
class Action:
    """One pass of one micro-batch through one model chunk of a stage.

    Attributes:
        kind: F (forward), B (backward), or W (weight gradient). In a schedule with W, B computes
            only the gradient of the inputs; in one without, B computes both gradients.
        micro_batch: its number, from 0.
        chunk: the stage's model chunk, from 0.
    """

    kind: str
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}" + (f".{self.chunk}" if self.chunk else "")


Schedule = list[list[Action]]


class VShaped(list[list[Action]]):
    """A schedule whose chunks are placed in a V (Qi et al. 2024, arXiv 2405.15362).

    Chunk 0 of stage s is virtual stage s, and its chunk 1 is virtual stage 2 * stages - 1 - s. So
    the last stage passes chunk 0's output to its own chunk 1, and the first stage holds both ends
    of the model. Everything else is a list per stage, as in any schedule.

    Attributes:
        whole: full backward passes, which compute both gradients at once, as (stage, B). Each is
            followed by its W. Only simulations with overlapping pairs use this.
    """

    def __init__(self, stages: Iterable[list[Action]] = (),
                 whole: Iterable[tuple[int, Action]] = ()) -> None:
        super().__init__(stages)
        self.whole = frozenset(whole)


StageAction = tuple[int, Action]  # a stage, and an action that it runs


def splits_backward(schedule: Sequence[Sequence[Action]]) -> bool:
    """Return True if the schedule computes weight gradients in separate W actions."""
    return any(action.kind == WEIGHT for actions in schedule for action in actions)


def count_chunks(schedule: Sequence[Sequence[Action]]) -> int:
    """Return the number of chunks per stage: one more than the highest number in use."""
    return 1 + max((action.chunk for actions in schedule for action in actions), default=0)


def virtual_stage(stage: int, chunk: int, stages: int, v_shaped: bool = False) -> int:
    """Return the position of a stage's chunk in the model, from 0."""
    return chunk * stages + (stages - 1 - stage if v_shaped and chunk % 2 else stage)


def dependencies(stage: int, action: Action, stages: int, chunks: int, v_shaped: bool = False
                 ) -> list[StageAction]:
    """Return the actions that must finish before this one can start.

    F depends on F of the previous virtual stage. B depends on its own F and on B of the next
    virtual stage. W depends on its own B.

    Args:
        stage: the stage that runs `action`.
        action: one of its actions.
        stages: the number of pipeline stages.
        chunks: model chunks per stage.
        v_shaped: whether the chunks are placed in a V, as in a VShaped schedule.
    """
    k, virtual = action.micro_batch, virtual_stage(stage, action.chunk, stages, v_shaped)
    if action.kind == WEIGHT:
        return [(stage, Action(BACKWARD, k, action.chunk))]
    step = -1 if action.kind == FORWARD else 1
    needed = [] if action.kind == FORWARD else [(stage, Action(FORWARD, k, action.chunk))]
    if 0 <= virtual + step < stages * chunks:
        chunk, neighbor = divmod(virtual + step, stages)
        if v_shaped and chunk % 2:
            neighbor = stages - 1 - neighbor
        needed.append((neighbor, Action(action.kind, k, chunk)))
    return needed


def sender(stage: int, action: Action, stages: int, chunks: int, v_shaped: bool = False
           ) -> StageAction | None:
    """Return the dependency on another stage, whose result must be received, or None.

    An action has at most one: W has none, nor has F of the first or B of the last virtual stage.
    Where a V-shaped pipeline turns around, the tensor stays on its stage, so there is none either.
    The arguments are those of `dependencies`.
    """
    return next((needed for needed in dependencies(stage, action, stages, chunks, v_shaped)
                 if needed[0] != stage), None)


def to_text(schedule: Sequence[Sequence[Action]]) -> list[str]:
    """Return the compact form, one string per stage: "F0 F1 B0 B1", with chunks as "F0.1"."""
    return [" ".join(map(str, actions)) for actions in schedule]
