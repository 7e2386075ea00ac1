"""Prints times that no plan of drawn clusters beats, as OR-Tools' CP-SAT proves, as JSON.

    pip install --no-deps --target /tmp/ortools ortools==9.15.6755 "immutabledict>=3"
    PYTHONPATH=/tmp/ortools:code:. python -m tests.oracles.make_plans > tests/oracles/plans.json

The plans are those of lab 14's planner. A step takes as long as the longest path through its
passes, and the length of a path is linear in the layers and the GPU kinds of the stages. So for
each number of replicas and of stages, CP-SAT looks for layers and kinds for which all known paths
are shorter than a limit. If there are none, no plan is that fast. Otherwise the plan is simulated,
its longest path is known from then on, and CP-SAT looks again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from math import floor
from random import Random
from typing import Any, NamedTuple

from cluster_planner.case_model import Case, all_reduce, durations, room, staged, step
from cluster_planner.case_planners import search
from labkit.contest.contests.plans import CONTEST
from pipeline_schedules import BACKWARD, FORWARD, fewest_layers, passes

SLACK = 0.015  # of the search's time: no plan is faster by more
UNIT = 10**5  # per ms, for integers; rounding down keeps a bound valid
SECONDS = 120  # that CP-SAT may take for one number of stages
NAMES = [f"{group.name} {number}" for number in range(6) for group in CONTEST.groups]


class Path(NamedTuple):
    """A path through the passes of a step.

    Attributes:
        forward: the number of its forward passes on each stage.
        backward: the number of its backward passes on each stage.
        links: how often it goes on to another stage.
        ring: the stage whose all-reduce ends it.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    links: int
    ring: int


def case_of(name: str) -> Case:
    """Return a case by its group and number: an open one if there is one, else one drawn by it."""
    group, number = name.split()
    (found,) = [one for one in CONTEST.groups if one.name == group]
    return found.open[int(number)] if int(number) < len(found.open) else found.draw(
        Random(int(number)))


def first_paths(stages: int, micro_batches: int) -> Iterator[Path]:
    """Yield the paths along one stage, with up to two trips from it to the last stage and back."""
    for stage in range(stages):
        after = stages - 1 - stage  # also the forward passes before the stage's first backward pass
        for early, late in ((0, 0), (0, 1), (1, 0), (1, 1)):  # whether it waits for such a trip
            trips = early + late
            if micro_batches < after + trips:
                continue
            for back in (0, 1):  # to stage 0, whose all-reduce comes last then
                yield Path((1,) * stage + (micro_batches - early * after,) + (trips,) * after,
                           (back,) * stage + (micro_batches - late * after,) + (trips,) * after,
                           (1 + back) * stage + 2 * trips * after, 0 if back else stage)


def longest_path(case: Case, plan: dict[str, Any]) -> Path:
    """Return the path that takes as long as the step of a plan."""
    stages, last, ends, before = len(plan["stages"]), {}, [], []
    order = passes("1f1b", stages, case["global_batch"] // plan["replicas"])
    times = dict(zip((FORWARD, BACKWARD), durations(case, plan), strict=True))
    for number, (kind, stage, source, _, _) in enumerate(order):
        ready = [(0.0, None)] if stage not in last else [(ends[last[stage]], last[stage])]
        ready += [] if source is None else [(ends[source] + case["link"], source)]
        start, previous = max(ready, key=lambda one: one[0])
        ends.append(start + times[kind][stage])
        before.append(previous)
        last[stage] = number
    rings = all_reduce(case, plan)
    ring = max(range(stages), key=lambda stage: ends[last[stage]] + rings[stage])
    at, links, runs = last[ring], 0, {FORWARD: [0] * stages, BACKWARD: [0] * stages}
    while at is not None:
        runs[order[at].kind][order[at].stage] += 1
        links += before[at] is not None and order[before[at]].stage != order[at].stage
        at = before[at]
    return Path(tuple(runs[FORWARD]), tuple(runs[BACKWARD]), links, ring)


class Shape:
    """All plans of a case with one number of replicas and one of stages, for CP-SAT.

    Args:
        case: the case.
        replicas: of the plans.
        stages: of the plans.
        below: ms that the step shall take at most.
    """

    def __init__(self, case: Case, replicas: int, stages: int, below: float) -> None:
        from ortools.sat.python import cp_model

        self.case, self.replicas, self.kinds = case, replicas, list(case["kinds"])
        self.limit, self.known = floor(below * UNIT), set()
        self.model, self.solver = cp_model.CpModel(), cp_model.CpSolver()
        self.solver.parameters.num_workers = 1
        self.infeasible, self.found = cp_model.INFEASIBLE, (cp_model.OPTIMAL, cp_model.FEASIBLE)
        self.has = [{kind: self.model.new_bool_var("") for kind in self.kinds}
                    for _ in range(stages)]
        self.layers = [{kind: self.model.new_int_var(0, case["layers"], "") for kind in self.kinds}
                       for _ in range(stages)]
        for kind, spec in case["kinds"].items():
            most = room(case, staged(replicas, [kind] * stages, [0] * stages))
            each = _scaled(case["global_batch"] // replicas * sum(spec["layer"]))
            self.model.add(sum(one[kind] for one in self.has) <= spec["gpus"] // replicas)
            for has, layers, least, fits in zip(self.has, self.layers, fewest_layers(stages), most,
                                                strict=True):
                self.model.add(layers[kind] >= least * has[kind])
                self.model.add(layers[kind] <= min(fits, self.limit // each) * has[kind])
        for has in self.has:
            self.model.add_exactly_one(has.values())
        self.model.add(sum(one for row in self.layers for one in row.values()) == case["layers"])
        for path in first_paths(stages, case["global_batch"] // replicas):
            self.add(path)

    def add(self, path: Path) -> None:
        """Demand that a path take no longer than the limit."""
        self.known.add(path)
        terms = [_scaled(path.links * self.case["link"])]
        for kind, spec in self.case["kinds"].items():
            ring = all_reduce(self.case, staged(self.replicas, [kind], [1]))[0]
            for stage, runs in enumerate(zip(path.forward, path.backward, strict=True)):
                layer, embedding, head = (
                    sum(count * ms for count, ms in zip(runs, spec[part], strict=True))
                    for part in ("layer", "embedding", "head"))
                edges = (stage == 0) * embedding + (stage == len(self.has) - 1) * head
                terms += [_scaled(layer + (stage == path.ring) * ring) * self.layers[stage][kind],
                          _scaled(edges) * self.has[stage][kind]]
        self.model.add(sum(terms) <= self.limit)

    def solve(self, seconds: float) -> dict[str, Any] | None:
        """Return a plan for which no known path is too long, or None if there is none."""
        self.solver.parameters.max_time_in_seconds = seconds
        status = self.solver.solve(self.model)
        if status == self.infeasible:
            return None
        if status not in self.found:
            raise RuntimeError(f"CP-SAT has decided nothing for {len(self.has)} stages")
        kinds = [next(kind for kind, one in has.items() if self.solver.boolean_value(one))
                 for has in self.has]
        return staged(self.replicas, kinds, [
            self.solver.value(layers[kind])
            for layers, kind in zip(self.layers, kinds, strict=True)])


def _scaled(milliseconds: float) -> int:
    return floor(milliseconds * UNIT)


def faster(case: Case, below: float) -> dict[str, Any] | None:
    """Return a plan whose step takes less than `below` ms, or None: then there is none.

    Raises:
        RuntimeError: CP-SAT needs more than SECONDS for some number of stages.
    """
    for replicas in case["replicas"]:
        gpus = sum(spec["gpus"] // replicas for spec in case["kinds"].values())
        for stages in range(1, min(gpus, case["layers"] + 2) + 1):
            shape, ends = Shape(case, replicas, stages, below), time.monotonic() + SECONDS
            while plan := shape.solve(max(0.1, ends - time.monotonic())):
                if step(case, plan).milliseconds < below:
                    return plan
                path = longest_path(case, plan)
                if path in shape.known:  # too long by less than rounding
                    raise RuntimeError(f"{plan} takes {below} ms")
                shape.add(path)
    return None


def proven(name: str) -> float:
    """Return a time in ms that no plan of a case beats, less than the search's by SLACK."""
    case = case_of(name)
    below = (1 - SLACK) * step(case, search(case)).milliseconds
    if (plan := faster(case, below)) is not None:
        raise RuntimeError(f"{name}: {plan} is faster than the search's plan by more than {SLACK}")
    return below


if __name__ == "__main__":
    print(json.dumps({name: proven(name) for name in NAMES}, indent=1))
