"""Activations that the stages of a pipeline keep for their backward passes, in each schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from minimegatron.formulas import in_flight
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, zb_h1


class Peak(NamedTuple):
    """Activations that a stage keeps for backward passes at one of its peaks.

    Attributes:
        saved: micro-batches whose layers' activations it keeps, in units of all its layers.
        waiting: micro-batches that wait for their weight gradients.
        edges: micro-batches whose activations of the embedding and the head it keeps.
        messages: tensors of sends that only their queue still holds, and of posted receives.
    """

    saved: float
    waiting: float
    edges: float
    messages: int


Live = tuple[Peak, ...]


@lru_cache(maxsize=4096)
def kept(schedule: str, p: int, m: int, chunks: int) -> tuple[Live, ...]:
    """Return the peaks of every stage."""
    sent = [_messages(schedule, p, m, chunks, stage) for stage in range(p)]
    if schedule == "zb-h1":
        return tuple(_split_peaks(actions, messages)
                     for actions, messages in zip(zb_h1(p, m), sent, strict=True))
    whole = [m if schedule == "gpipe" else in_flight(p, stage, m, chunks) for stage in range(p)]
    # The last chunk's forward passes are followed by their backward passes, unless all come first.
    last = 1.0 if chunks > 1 and m > p else whole[-1]
    return tuple((Peak(count, 0, last if stage == p - 1 else count, sent[stage]),)
                 for stage, count in enumerate(whole))


def _messages(schedule: str, p: int, m: int, chunks: int, stage: int) -> int:
    """Return the messages of a stage at its peak.

    A queue holds a stage's last p sends: gradients, and outputs whose backward pass has ended, of
    which a stage further ahead has fewer, but it has posted as many more receives. In ZB-H1,
    outputs also wait for their weight gradients.
    """
    if p == 1:
        return 0
    if chunks > 1:
        return chunks * (min(p, m) + 1)
    if stage == 0:
        return 1
    if schedule == "gpipe":
        return 1 if stage == p - 1 else m
    if stage == p - 1:
        return min(p, m) + 1
    return 2 * min(p, m) + (stage if schedule == "zb-h1" else 0)


def _split_peaks(actions: Sequence[Action], messages: int) -> Live:
    """Return the peaks of a stage that computes weight gradients in passes of their own."""
    saved, held, peaks = 0, 0, set()
    for action in actions:
        saved += action.kind == FORWARD
        peaks.add(Peak(saved, held, saved, messages))  # a pass frees what it has read when it ends
        if action.kind == BACKWARD:
            saved, held = saved - 1, held + 1
        held -= action.kind == WEIGHT
    return tuple(one for one in peaks if not any(
        one != other and one[0] <= other[0] and one[1] <= other[1] for other in peaks))
