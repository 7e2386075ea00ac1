"""Count the micro-batches whose activations a schedule stores at once."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline_schedules.actions import BACKWARD, FORWARD, WEIGHT, Action, splits_backward


def live_activations(actions: Sequence[Action], split: bool) -> list[int]:
    """Return, after each action, the number of (micro-batch, chunk) pairs in flight on a stage.

    Their activations are stored from the forward until the last action that reads them: B, or W
    in a schedule that splits the backward. W reads only part of them, so this is an upper bound.
    """
    last, alive, counts = WEIGHT if split else BACKWARD, 0, []
    for action in actions:
        alive += (action.kind == FORWARD) - (action.kind == last)
        counts.append(alive)
    return counts


def peak_live(schedule: Sequence[Sequence[Action]]) -> list[int]:
    """Return each stage's peak number of (micro-batch, chunk) pairs in flight.

    With v chunks, one pair takes 1/v of the activation memory of a whole stage's micro-batch.
    """
    split = splits_backward(schedule)
    return [max(live_activations(actions, split), default=0) for actions in schedule]
