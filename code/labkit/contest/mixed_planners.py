"""Planners for clusters with several kinds of GPUs, by the model of mixed_clusters.py."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import le
from typing import Any

from labkit.contest.mixed_clusters import Case, Plan, durations, in_flight
from pipeline_schedules import fewest_layers


def placements(counts: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield every distinct order of the kinds, {kind: how many stages}."""
    if not any(counts.values()):
        yield ()
    for kind, left in counts.items():
        if left:
            for rest in placements({**counts, kind: left - 1}):
                yield (kind, *rest)


def even(case: Case) -> dict[str, Any]:
    """Return the plan that ignores kinds: all GPUs, and the same number of layers everywhere."""
    replicas = max(case["replicas"])
    kinds = [kind for kind, spec in case["kinds"].items() for _ in range(spec["gpus"] // replicas)]
    return staged(replicas, kinds, [
        case["layers"] * (stage + 1) // len(kinds) - case["layers"] * stage // len(kinds)
        for stage in range(len(kinds))])


def proportional(case: Case) -> dict[str, Any]:
    """Return the plan that gives every stage layers in proportion to its GPU's speed.

    The plan has all GPUs and the most replicas; there are at least as many layers as stages.
    """
    replicas = max(case["replicas"])
    kinds = [kind for kind, spec in case["kinds"].items() for _ in range(spec["gpus"] // replicas)]
    speeds = [1 / sum(case["kinds"][kind]["layer"]) for kind in kinds]
    edges = [0]  # a stage that is too slow for a layer gets one all the same
    for stage in range(1, len(kinds) + 1):
        edge = round(case["layers"] * sum(speeds[:stage]) / sum(speeds))
        edges.append(max(edges[-1] + 1, min(edge, case["layers"] - len(kinds) + stage)))
    return staged(replicas, kinds, [after - before for before, after in pairwise(edges)])


def balanced(case: Case, replicas: int, kinds: Sequence[str]) -> dict[str, Any] | None:
    """Return the plan of this placement whose slowest stage is fastest, or None if none fits.

    All layers are alike. So after those that no stage may lack, the next layer always goes to the
    stage that would then take the least time, among those with room: exchanging two layers never
    helps.
    """
    layers = fewest_layers(len(kinds))
    plan = staged(replicas, kinds, layers)
    most = room(case, plan)
    if sum(most) < case["layers"] or sum(layers) > case["layers"] or not all(
            map(le, layers, most)):
        return None
    per_layer = [sum(case["kinds"][kind]["layer"]) for kind in kinds]
    queue = [(one + other + per_layer[stage], stage)
             for stage, (one, other) in enumerate(zip(*durations(case, plan), strict=True))
             if layers[stage] < most[stage]]
    heapq.heapify(queue)
    for _ in range(case["layers"] - sum(layers)):
        time, stage = queue[0]
        layers[stage] += 1
        if layers[stage] < most[stage]:
            heapq.heapreplace(queue, (time + per_layer[stage], stage))
        else:
            heapq.heappop(queue)
    return staged(replicas, kinds, layers)


def room(case: Case, plan: Plan) -> list[int]:
    """Return the most layers for which each stage has memory."""
    return [int(case["kinds"][kind]["memory"] / (case["state"] + count * case["activation"]) + 1e-9)
            for (kind, _), count in zip(plan["stages"], in_flight(case, plan), strict=True)]


def staged(replicas: int, kinds: Sequence[str], layers: Sequence[int]) -> dict[str, Any]:
    """Return a plan."""
    return {"replicas": replicas,
            "stages": [list(stage) for stage in zip(kinds, layers, strict=True)]}
