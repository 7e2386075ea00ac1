"""Point-to-point messages between stages, and programs: schedules that contain them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline_schedules.actions import Action

SEND, RECEIVE = "send", "receive"
Queue = tuple[str, int, int, int]  # F or B, the sending and the receiving stage, the source's chunk


@dataclass(frozen=True)
class Message:
    """One end of the transfer of an action's result.

    Attributes:
        end: SEND, in the list of stage `source`, or RECEIVE, in the list of stage `target`.
        action: the action that computed the tensor, on stage `source`.
        source: the sending stage.
        target: the receiving stage.
    """

    end: str
    action: Action
    source: int
    target: int

    @property
    def queue(self) -> Queue:
        """Return the first-in, first-out queue that carries it."""
        return self.action.kind, self.source, self.target, self.action.chunk

    def __str__(self) -> str:
        other = f"to {self.target}" if self.end == SEND else f"from {self.source}"
        return f"{self.end} {self.action} {other}"


Program = list[list[Action | Message]]
