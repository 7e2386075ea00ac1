"""Planners for cases: by speed alone, as published, and a search, the contest's strongest ghost.

AMP and FASOP are those of partition.py, on the placements of `starts`; neither considers memory
when it splits the layers, and plans that do not fit are dropped. The search begins with the plans
of all the others, so it is never slower than one of them.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import combinations, pairwise, product
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from cluster_planner import partition
from cluster_planner.case_model import Case, InvalidPlan, Place, Plan, case_stages, staged
from cluster_planner.partition import LESS, Partitioner, Split
from cluster_planner.placement import orders
from cluster_planner.stages import Stages
from cluster_planner.timing import step_times

MOST_PLACEMENTS = 500
FEW_ORDERS = 20  # of some of the GPUs: then all are tried, else those with each kind together
SIMULATED = 60  # plans of different placements, those with the least lower bounds
IMPROVED = 16  # of them, by moving layers
CHANGED = 6  # plans whose placements are changed
MOST_MOVED = 8  # layers that move at once

Planner = Callable[[Case], dict[str, Any]]


class Placed(NamedTuple):
    """A placement, what its stages cost, and a time that its step takes at least."""

    place: Place
    stages: Stages
    least: float


def _placed(case: Case, place: Place) -> Placed:
    stages = case_stages(case, place)
    return Placed(place, stages, partition.least_time(stages))


def _promising(placed: Iterable[Placed]) -> list[tuple[int, Placed]]:
    """Return the placements with their numbers, those with the least lower bounds first.

    Once a plan is known, the last ones cannot be better. The numbers decide between equal plans.
    """
    return sorted(enumerate(placed), key=lambda one: one[1].least)


def starts(case: Case) -> list[Placed]:
    """Return the placements that planners begin with."""
    return _starts(json.dumps(case))


@lru_cache(maxsize=1)  # the planners of a case share it
def _starts(text: str) -> list[Placed]:
    case = json.loads(text)
    return [_placed(case, (replicas, kinds))
            for replicas in case["replicas"] for kinds in _tried(
                {kind: spec["gpus"] // replicas for kind, spec in case["kinds"].items()})]


def _tried(counts: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield placements on some GPUs of each kind, and orders in which GPUs of a kind are neighbors.

    All distinct orders are among them where there are few.
    """
    every = prod(count + 1 for count in counts.values()) <= MOST_PLACEMENTS
    some = [range(count + 1) if every else {0, count // 2, count} for count in counts.values()]
    for chosen in product(*some):
        used = {kind: count for kind, count in zip(counts, chosen, strict=True) if count}
        if used:
            yield from orders(used, MOST_PLACEMENTS if used == counts else FEW_ORDERS)


def _all_gpus(case: Case) -> Place:
    """Return all GPUs, kind by kind, with the most replicas."""
    replicas = max(case["replicas"])
    return replicas, tuple(kind for kind, spec in case["kinds"].items()
                           for _ in range(spec["gpus"] // replicas))


def even(case: Case) -> dict[str, Any]:
    """Return the plan that ignores kinds: all GPUs, and the same number of layers everywhere."""
    replicas, kinds = _all_gpus(case)
    return staged(replicas, kinds, partition.even_split(case["layers"], len(kinds), spread=True))


def proportional(case: Case) -> dict[str, Any]:
    """Return the plan that gives every stage layers in proportion to its GPU's speed.

    The plan has all GPUs and the most replicas; there are at least as many layers as stages.
    """
    replicas, kinds = _all_gpus(case)
    speeds = [1 / sum(case["kinds"][kind]["layer"]) for kind in kinds]
    edges = [0]  # a stage that is too slow for a layer gets one all the same
    for stage in range(1, len(kinds) + 1):
        edge = round(case["layers"] * sum(speeds[:stage]) / sum(speeds))
        edges.append(max(edges[-1] + 1, min(edge, case["layers"] - len(kinds) + stage)))
    return staged(replicas, kinds, [after - before for before, after in pairwise(edges)])


def balanced(case: Case, replicas: int, kinds: Sequence[str]) -> dict[str, Any] | None:
    """Return the plan of this placement whose slowest stage is fastest, or None if none fits."""
    split = partition.balanced(case_stages(case, (replicas, tuple(kinds))))
    return None if split is None else staged(replicas, kinds, split)


def fasop(case: Case) -> dict[str, Any]:
    """Return FASOP's plan (Hwang et al. 2024): the fastest of its splits in a simulation of 1F1B.

    Its splits do not count messages. Raises InvalidPlan if no plan fits.
    """
    return _published(case, partial(partition.fasop, sends=False))


def amp(case: Case) -> dict[str, Any]:
    """Return AMP's plan (Li et al. 2022): the least by its cost model, not simulated.

    Raises InvalidPlan if no plan fits.
    """
    return _published(case, partition.amp)


def _published(case: Case, partitioner: Partitioner) -> dict[str, Any]:
    """Return the plan of the placement whose partition the partitioner ranks first."""
    least, best = (np.inf, 0), None
    for number, (place, stages, bound) in _promising(starts(case)):
        if bound > least[0]:
            break
        made = partitioner(stages, np.nextafter(least[0], np.inf))
        if made is not None and (made.time, number) < least:
            least, best = (made.time, number), staged(*place, made.layers)
    if best is None:
        raise InvalidPlan("memory", "the model fits on no placement")
    return best


SEEDS: tuple[Planner, ...] = (even, proportional, amp, fasop)


class Candidate(NamedTuple):
    """A plan of the search.

    Attributes:
        time: ms of its step, or a lower bound of them.
        place: its replicas, and the kind of GPU of each stage.
        stages: what its stages cost.
        layers: of each stage.
    """

    time: float
    place: Place
    stages: Stages
    layers: Split

    def improved(self, most: int) -> Candidate:
        """Return the plan after moves of up to `most` layers at once that make it faster."""
        made = partition.improved(self.stages, self.layers, most=most)
        return self._replace(time=made.time, layers=made.layers)


def search(case: Case) -> dict[str, Any]:
    """Return the fastest plan that a local search finds.

    It begins with the other planners' plans and with a plan for every number of replicas and each
    of many placements, moves layers of the best ones, and then changes their placements, one
    stage at a time. No step keeps a slower plan in place of a faster one, so the result is never
    slower than a plan of SEEDS. The process keeps the plans of the last cases.

    Raises:
        InvalidPlan: no plan fits.
    """
    return json.loads(_searched(json.dumps(case)))


@lru_cache(maxsize=256)
def _searched(text: str) -> str:
    """Return the plan of a case, both as JSON."""
    case = json.loads(text)
    found = [one._replace(time=float(step_times(one.stages, [one.layers])[0]))
             for one in (*_seeds(case), *_leanest(starts(case), most=SIMULATED))]
    if not found:
        raise InvalidPlan("memory", "the model fits on no placement")
    best = _fastest(one.improved(1) for one in _fastest(found, IMPROVED))
    best = _fastest(one.improved(MOST_MOVED) for one in best)
    seen = {one.place for one in best}
    while True:
        places = {place for one in best for place in _changes(case, one.place)} - seen
        seen |= places
        least = best[0].time
        placed = [_placed(case, place) for place in sorted(places)]
        found = _fastest(one.improved(1) for one in _leanest(placed, least))
        best = _fastest([*best, *(one.improved(MOST_MOVED) for one in found)])
        if best[0].time >= least * LESS:
            return json.dumps(staged(*best[0].place, best[0].layers))


def _fastest(found: Iterable[Candidate], most: int = CHANGED) -> list[Candidate]:
    return sorted(found, key=attrgetter("time"))[:most]


def lower_bound(case: Case, plan: Plan) -> float:
    """Return a time, in ms, that the step of this plan takes at least."""
    kinds, layers = zip(*plan["stages"], strict=True)
    return float(partition.bounds(case_stages(case, (plan["replicas"], kinds)),
                                  np.array([layers]))[0])


def _seeds(case: Case) -> Iterator[Candidate]:
    """Yield the other planners' plans that fit, untimed."""
    for planner in SEEDS:
        with suppress(InvalidPlan):
            plan = planner(case)
            kinds, layers = zip(*plan["stages"], strict=True)
            stages = case_stages(case, (plan["replicas"], kinds))
            if stages.fits[range(len(kinds)), layers].all():
                yield Candidate(0.0, (plan["replicas"], kinds), stages, layers)


def _leanest(placed: Iterable[Placed], below: float = np.inf, most: int | None = None
             ) -> list[Candidate]:
    """Return the plan of each placement with the least lower bound, and this in place of its time.

    The splits are those with the least total time for each limit on the slowest stage.

    Args:
        placed: the placements.
        below: plans with a greater bound are left out.
        most: how many plans, those with the least bounds; None for all.
    """
    plans: list[tuple[float, int, Candidate]] = []
    for number, (place, stages, bound) in _promising(placed):
        if bound >= below or (most and len(plans) >= most and bound > plans[most - 1][0]):
            break
        splits = partition.lean_splits(stages)
        if len(splits):
            bounds = partition.bounds(stages, splits)
            time, layers = float(bounds.min()), tuple(splits[bounds.argmin()].tolist())
            if time < below:
                insort(plans, (time, number, Candidate(time, place, stages, layers)))
    return [plan for _, _, plan in plans[:most]]


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
