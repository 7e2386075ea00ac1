"""A search for the fastest plan, by the model of mixed_clusters.py: the contest's strongest ghost.

It also begins with the plans of the other planners, so it is never slower than one of them. Lower
bounds rule most plans out, and splits of one placement are simulated many at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from labkit.contest.mixed_clusters import Case, InvalidPlan, Plan
from labkit.contest.mixed_pipelines import LESS, MixedPipeline, Place, Timed, starts
from labkit.contest.mixed_planners import even, proportional
from labkit.contest.mixed_published import amp, fasop

SIMULATED = 60  # plans of different placements, those with the least lower bounds
IMPROVED = 16  # of them, by moving layers
CHANGED = 6  # plans whose placements are changed
MOST_MOVED = 8  # layers that move at once

Planner = Callable[[Case], dict[str, Any]]
SEEDS: tuple[Planner, ...] = (even, proportional, amp, fasop)


def search(case: Case) -> dict[str, Any]:
    """Return the fastest plan that a local search finds.

    It begins with the other planners' plans and with a plan for every number of replicas and each
    of many placements, moves layers of the best ones, and then changes their placements, one
    stage at a time. No step keeps a slower plan in place of a faster one, so the result is never
    slower than a plan of SEEDS. The process keeps the plans of the last cases.

    Args:
        case: the case.

    Raises:
        InvalidPlan: no plan fits.
    """
    return json.loads(_searched(json.dumps(case)))


@lru_cache(maxsize=256)
def _searched(text: str) -> str:
    """Return the plan of a case, both as JSON."""
    case = json.loads(text)
    plans = [*_seeds(case), *_leanest(case, starts(case))[:SIMULATED]]
    if not plans:
        raise InvalidPlan("memory", "the model fits on no placement")
    plans = sorted(Timed(float(one.pipeline.milliseconds(one.layers[None])[0]), one.pipeline,
                         one.layers) for one in plans)[:IMPROVED]
    best = sorted(one.pipeline.improved(one.layers, 1) for one in plans)[:CHANGED]
    best = sorted(one.pipeline.improved(one.layers, MOST_MOVED) for one in best)
    seen = {one.pipeline.place for one in best}
    while True:
        places = {place for one in best for place in _changes(case, one.pipeline.place)} - seen
        seen |= places
        least = best[0].milliseconds
        plans = sorted(one.pipeline.improved(one.layers, 1)
                       for one in _leanest(case, sorted(places), least))[:CHANGED]
        best = sorted([*best, *(one.pipeline.improved(one.layers, MOST_MOVED)
                                for one in plans)])[:CHANGED]
        if best[0].milliseconds >= least * LESS:
            return json.dumps(best[0].plan)


def lower_bound(case: Case, plan: Plan) -> float:
    """Return a time, in ms, that the step of this plan takes at least."""
    kinds, layers = zip(*plan["stages"], strict=True)
    return float(MixedPipeline(case, (plan["replicas"], kinds)).bounds(np.array([layers]))[0])


def _seeds(case: Case) -> Iterator[Timed]:
    """Yield the other planners' plans that fit, untimed."""
    for planner in SEEDS:
        with suppress(InvalidPlan):
            plan = planner(case)
            kinds, layers = zip(*plan["stages"], strict=True)
            pipeline, split = MixedPipeline(case, (plan["replicas"], kinds)), np.array(layers)
            if (split <= pipeline.room).all():
                yield Timed(0.0, pipeline, split)


def _leanest(case: Case, places: Iterable[Place], below: float = np.inf) -> list[Timed]:
    """Return the plan of each placement with the least lower bound, and this in place of its time.

    The splits are those with the least total time for each limit on the slowest stage.
    """
    plans = []
    for place in places:
        pipeline = MixedPipeline(case, place)
        splits = pipeline.lean_splits(case["layers"], pipeline.fewest, pipeline.room)
        if len(splits):
            bounds = pipeline.bounds(splits)
            plans.append(Timed(float(bounds.min()), pipeline, splits[bounds.argmin()]))
    return sorted(one for one in plans if one.milliseconds < below)


def _changes(case: Case, place: Place) -> Iterator[Place]:
    """Yield the placements with one stage more or less, on another kind, or two exchanged."""
    replicas, kinds = place
    spare = [kind for kind, spec in case["kinds"].items()
             if spec["gpus"] // replicas > kinds.count(kind)]
    for at in range(len(kinds) + 1):
        yield from ((replicas, (*kinds[:at], kind, *kinds[at:])) for kind in spare)
    for at, old in enumerate(kinds):
        if len(kinds) > 1:
            yield replicas, (*kinds[:at], *kinds[at + 1:])
        yield from ((replicas, (*kinds[:at], kind, *kinds[at + 1:]))
                    for kind in spare if kind != old)
    for one, other in combinations(range(len(kinds)), 2):
        if kinds[one] != kinds[other]:
            exchanged = list(kinds)
            exchanged[one], exchanged[other] = kinds[other], kinds[one]
            yield replicas, tuple(exchanged)
