"""Explain a deadlock: name the stages that wait for each other and the items they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline_schedules.actions import Action
from pipeline_schedules.messages import Message


def explain(program: Sequence[Sequence[Action | Message]], positions: Sequence[int],
            waiting: Mapping[tuple[int, Action | Message], Sequence[int]]) -> str:
    """Return the stages that wait: a cycle, or a stage that waits for a missing item.

    Args:
        program: per stage, its items.
        positions: per stage, the position of its next item.
        waiting: by item and its stage, the stages that wait for it; not empty.
    """
    blocked = {stage: needed for needed, stages in waiting.items() for stage in stages}

    def waits(stage: int) -> str:
        other, needed = blocked[stage]
        return (f"stage {stage} is at {program[stage][positions[stage]]} (position "
                f"{positions[stage]}) and waits for {needed} of stage {other}")

    path, stage = [], min(blocked)
    while stage not in path:
        path.append(stage)
        other, needed = blocked[stage]
        if needed not in program[other][positions[other]:]:
            return f"deadlock: {waits(stage)}, which never runs it"
        if other == stage:
            return f"deadlock: {waits(stage)}, which comes later in its own list"
        stage = other
    ring = path[path.index(stage):]
    first = ring.index(min(ring))
    cycle = ring[first:] + ring[:first]
    return ("deadlock: " + "; ".join(map(waits, cycle))
            + ". Each waits for the next, the last for the first")
