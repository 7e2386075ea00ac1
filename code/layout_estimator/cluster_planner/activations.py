"""What the stages of a pipeline keep for their backward passes, in each schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from minimegatron.formulas import in_flight
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, zb_h1


class Peak(NamedTuple):
    """What a stage keeps for backward passes at a time.

    Attributes:
        saved: micro-batches whose layers' activations it keeps, in units of all its layers.
        waiting: micro-batches that wait for their weight gradients.
        edges: micro-batches whose activations of the embedding and the head it keeps.
    """

    saved: float
    waiting: float
    edges: float


Live = tuple[Peak, ...]


@lru_cache(maxsize=4096)
def kept(schedule: str, p: int, m: int, chunks: int) -> tuple[Live, ...]:
    """Return for each stage what it keeps at its peaks."""
    if schedule == "zb-h1":
        return tuple(map(_split_peaks, zb_h1(p, m)))
    whole = [m if schedule == "gpipe" else in_flight(p, stage, m, chunks) for stage in range(p)]
    # The last chunk's forward passes are followed by their backward passes, unless all come first.
    last = 1.0 if chunks > 1 and m > p else whole[-1]
    return tuple((Peak(count, 0, last if stage == p - 1 else count),)
                 for stage, count in enumerate(whole))


def _split_peaks(actions: Sequence[Action]) -> Live:
    """Return the peaks of a stage that computes weight gradients in passes of their own."""
    saved, held, peaks = 0, 0, set()
    for action in actions:
        saved += action.kind == FORWARD
        peaks.add(Peak(saved, held, saved))  # a pass frees what it has read when it ends
        if action.kind == BACKWARD:
            saved, held = saved - 1, held + 1
        held -= action.kind == WEIGHT
    return tuple(one for one in peaks if not any(
        one != other and one[0] <= other[0] and one[1] <= other[1] for other in peaks))
