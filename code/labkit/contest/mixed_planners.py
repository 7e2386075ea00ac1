"""Planners for clusters with several kinds of GPUs, by the model of mixed_clusters.py."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations, product
from math import factorial, prod
from typing import Any

from labkit.contest.mixed_clusters import (
    Case,
    InvalidPlan,
    Plan,
    all_reduce,
    durations,
    in_flight,
    step,
)

MOST_PLACEMENTS = 500
FEW_ORDERS = 20  # of a choice of GPUs: then all are tried, else those with each kind together
IMPROVED = 16  # plans that are improved by moving layers


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
    return _plan(replicas, kinds, [
        case["layers"] * (stage + 1) // len(kinds) - case["layers"] * stage // len(kinds)
        for stage in range(len(kinds))])


def proportional(case: Case) -> dict[str, Any]:
    """Return the plan that gives every stage layers in proportion to its GPU's speed."""
    replicas = max(case["replicas"])
    kinds = [kind for kind, spec in case["kinds"].items() for _ in range(spec["gpus"] // replicas)]
    speeds = [1 / sum(case["kinds"][kind]["layer"]) for kind in kinds]
    edges = [round(case["layers"] * sum(speeds[:stage]) / sum(speeds))
             for stage in range(len(kinds) + 1)]
    return _plan(replicas, kinds, [after - before for before, after in pairwise(edges)])


def balanced(case: Case, replicas: int, kinds: Sequence[str]) -> dict[str, Any] | None:
    """Return the plan of this placement whose slowest stage is fastest, or None if none fits.

    All layers are alike, so the next layer always goes to the stage that would then take the
    least time, among those with room: exchanging two layers never helps.
    """
    plan = _plan(replicas, kinds, [0] * len(kinds))
    room = [int(case["kinds"][kind]["memory"] / (case["state"] + count * case["activation"]) + 1e-9)
            for kind, count in zip(kinds, in_flight(case, plan), strict=True)]
    if sum(room) < case["layers"]:
        return None
    per_layer = [sum(case["kinds"][kind]["layer"]) for kind in kinds]
    layers, queue = [0] * len(kinds), []
    for stage, (one, other) in enumerate(zip(*durations(case, plan), strict=True)):
        if room[stage]:
            queue.append((one + other + per_layer[stage], stage))
    heapq.heapify(queue)
    for _ in range(case["layers"]):
        time, stage = queue[0]
        layers[stage] += 1
        if layers[stage] < room[stage]:
            heapq.heapreplace(queue, (time + per_layer[stage], stage))
        else:
            heapq.heappop(queue)
    return _plan(replicas, kinds, layers)


def search(case: Case, simulated: int = 60) -> dict[str, Any]:
    """Return the fastest of the balanced plans of every number of replicas and every placement,
    improved by moving layers.

    Args:
        case: the case.
        simulated: how many plans, those with the least lower bounds, are simulated.

    Raises:
        InvalidPlan: no plan fits.
    """
    candidates = []
    for replicas in case["replicas"]:
        counts = {kind: spec["gpus"] // replicas for kind, spec in case["kinds"].items()}
        plans = (balanced(case, replicas, kinds) for kinds in _tried(counts))
        candidates += [(lower_bound(case, plan), plan) for plan in plans if plan is not None]
    if not candidates:
        raise InvalidPlan("memory", "the model fits on no placement")
    candidates.sort(key=lambda one: one[0])
    ranked = sorted((plan for _, plan in candidates[:simulated]),
                    key=lambda plan: step(case, plan).milliseconds)
    return min((improved(case, plan) for plan in ranked[:IMPROVED]),
               key=lambda plan: step(case, plan).milliseconds)


def improved(case: Case, plan: Plan, passes: int = 10_000) -> dict[str, Any]:
    """Return the plan after moves of single layers, as long as one makes the step shorter.

    The split whose slowest stage is fastest is not always the one with the shortest step: with few
    micro-batches, filling and draining the pipeline counts, too.

    Args:
        case: the case.
        plan: a plan that fits.
        passes: the most passes to simulate, over all plans.
    """
    replicas, kinds = plan["replicas"], [kind for kind, _ in plan["stages"]]
    layers, least = [count for _, count in plan["stages"]], step(case, plan).milliseconds
    moves = list(permutations(range(len(kinds)), 2))
    simulated = passes // (2 * len(kinds) * case["global_batch"] // replicas)
    since = 0  # the moves tried since the last one that helped
    while since < len(moves) and simulated > 0:
        source, target = moves[0]
        moves.append(moves.pop(0))
        since += 1
        if not layers[source]:
            continue
        moved = list(layers)
        moved[source] -= 1
        moved[target] += 1
        simulated -= 1
        try:
            milliseconds = step(case, _plan(replicas, kinds, moved)).milliseconds
        except InvalidPlan:
            continue
        if milliseconds < least * (1 - 1e-9):
            layers, least, since = moved, milliseconds, 0
    return _plan(replicas, kinds, layers)


def lower_bound(case: Case, plan: Plan) -> float:
    """Return a time, in ms, that the step of this plan takes at least.

    Before a stage starts, the first micro-batch passes through the stages before it; after it
    ends, the last gradient passes back through them.
    """
    forward, backward = durations(case, plan)
    rings, fill, trip, least = all_reduce(case, plan), 0.0, 0.0, 0.0
    for stage, (one, other) in enumerate(zip(forward, backward, strict=True)):
        work = case["global_batch"] // plan["replicas"] * (one + other)
        least = max(least, trip + work + (rings[0] if stage else 0), fill + work + rings[stage])
        fill, trip = fill + one + case["link"], trip + one + other + 2 * case["link"]
    return least


def _tried(counts: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield placements on some GPUs of each kind, and orders in which GPUs of a kind are neighbors.

    All distinct orders are among them where there are few.
    """
    every = prod(count + 1 for count in counts.values()) <= MOST_PLACEMENTS
    some = [range(count + 1) if every else {0, count // 2, count} for count in counts.values()]
    for chosen in product(*some):
        used = {kind: count for kind, count in zip(counts, chosen, strict=True) if count}
        orders = factorial(sum(chosen)) // prod(map(factorial, chosen))
        if used and (orders <= FEW_ORDERS or (orders <= MOST_PLACEMENTS and used == counts)):
            yield from placements(used)
        elif used:
            for order in permutations(used):
                yield tuple(kind for kind in order for _ in range(used[kind]))


def _plan(replicas: int, kinds: Sequence[str], layers: Sequence[int]) -> dict[str, Any]:
    return {"replicas": replicas,
            "stages": [list(stage) for stage in zip(kinds, layers, strict=True)]}
