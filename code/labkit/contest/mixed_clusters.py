"""The modeled step of a plan on a cluster with several kinds of GPUs, and planners for it.

The model behind lab 14 and the contest `plans`. A **plan** says how many replicas train, and for
every pipeline stage, its kind of GPU and its number of transformer layers:

    {"replicas": 4, "stages": [["a10", 6], ["a10", 7], ["a100", 17], ["a100", 18]]}

Every stage runs on one GPU per replica. A **case** describes the cluster and the model; CASE below
has its keys and units.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from math import factorial, prod
from typing import Any

from pipeline_schedules import Durations, load, simulate

CASE = """\
  layers          transformer layers of the model
  global_batch    micro-batches per step, over all replicas
  replicas        the numbers of replicas that you may use, such as [1, 2, 4]
  link            ms to send activations, or their gradients, from one stage to the next
  state           GiB of weights, gradients, and optimizer state per layer
  activation      GiB that a layer keeps of one micro-batch, from its forward to its backward pass
  gradients       GB of gradients per layer
  kinds           {kind of GPU: {
                      gpus, per_node  how many there are, and how many share a node
                      embedding, layer, head
                                      [forward, backward] ms per micro-batch; the first stage has
                                      the embedding, the last stage the head
                      memory          GiB of a GPU
                      inside, network GB/s of a ring all-reduce within a node, and across nodes}}"""

MOST_PLACEMENTS = 500

Case = Mapping[str, Any]
Plan = Mapping[str, Any]


class InvalidPlan(ValueError):
    """A plan that cannot run; `kind` is a few words that do not depend on the case."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Step:
    """The modeled step of a plan.

    Attributes:
        milliseconds: from the first forward pass to the end of the last all-reduce.
        busy: the fraction of that time in which each stage computes.
        memory: GiB that a GPU of each stage needs at its peak.
        all_reduce: ms of each stage's gradient all-reduce.
    """

    milliseconds: float
    busy: list[float]
    memory: list[float]
    all_reduce: list[float]


def refuse_invalid(case: Case, plan: Any) -> None:
    """Raise InvalidPlan if the value is no plan, or uses what the cluster lacks; ignore memory."""
    if not (isinstance(plan, Mapping) and set(plan) == {"replicas", "stages"}):
        raise InvalidPlan("no plan", 'a plan is {"replicas": number, "stages": [[kind, layers], '
                                     f"...]}}, not {str(plan)[:80]}")
    replicas, stages = plan["replicas"], plan["stages"]
    if type(replicas) is not int or replicas not in case["replicas"]:
        raise InvalidPlan("replicas", f"{str(replicas)[:20]} replicas; allowed: "
                          + ", ".join(map(str, case["replicas"])))
    if not isinstance(stages, list | tuple) or not stages or len(stages) > 1024:
        raise InvalidPlan("no plan", f"stages is a list of [kind, layers], not {str(stages)[:80]}")
    for number, stage in enumerate(stages):
        if not (isinstance(stage, list | tuple) and len(stage) == 2 and isinstance(stage[0], str)
                and stage[0] in case["kinds"] and type(stage[1]) is int and stage[1] >= 0):
            raise InvalidPlan("no plan", f"stage {number} is {str(stage)[:40]}, not [kind, layers] "
                              f"with a kind of {', '.join(case['kinds'])}")
    layers = sum(count for _, count in stages)
    if layers != case["layers"]:
        raise InvalidPlan("layers", f"the stages have {layers} layers in total; the model has "
                                    f"{case['layers']}")
    for kind, spec in case["kinds"].items():
        needed = replicas * sum(stage[0] == kind for stage in stages)
        if needed > spec["gpus"]:
            raise InvalidPlan("GPUs", f"the plan needs {needed} GPUs of kind {kind}; there are "
                                      f"{spec['gpus']}")


def durations(case: Case, plan: Plan) -> tuple[list[float], list[float]]:
    """Return every stage's forward and backward ms per micro-batch."""
    forward, backward = (
        [count * case["kinds"][kind]["layer"][way] for kind, count in plan["stages"]]
        for way in (0, 1))
    for part, stage in (("embedding", 0), ("head", -1)):
        spec = case["kinds"][plan["stages"][stage][0]]
        forward[stage] += spec[part][0]
        backward[stage] += spec[part][1]
    return forward, backward


def all_reduce(case: Case, plan: Plan) -> list[float]:
    """Return every stage's gradient all-reduce, in ms: a ring over one GPU per replica."""
    replicas = plan["replicas"]
    rings = []
    for kind, count in plan["stages"]:
        spec = case["kinds"][kind]
        speed = spec["inside"] if replicas <= spec["per_node"] else spec["network"]
        rings.append(2000 * (replicas - 1) / replicas * count * case["gradients"] / speed)
    return rings


def memory(case: Case, plan: Plan) -> list[float]:
    """Return every stage's peak memory per GPU, in GiB."""
    return [count * (case["state"] + live * case["activation"])
            for (_, count), live in zip(plan["stages"], in_flight(case, plan), strict=True)]


def in_flight(case: Case, plan: Plan) -> list[int]:
    """Return the micro-batches that each stage keeps activations of at its peak, under 1F1B."""
    stages = len(plan["stages"])
    return [min(stages - stage, case["global_batch"] // plan["replicas"])
            for stage in range(stages)]


def step(case: Case, plan: Any) -> Step:
    """Return the modeled step of a plan. Raises InvalidPlan, also if a stage runs out of memory."""
    refuse_invalid(case, plan)
    needed = memory(case, plan)
    for stage, ((kind, _), gigabytes) in enumerate(zip(plan["stages"], needed, strict=True)):
        if gigabytes > case["kinds"][kind]["memory"]:
            raise InvalidPlan("memory", f"stage {stage} needs {gigabytes:.1f} GiB; its {kind} has "
                                        f"{case['kinds'][kind]['memory']:g} GiB")
    forward, backward = durations(case, plan)
    schedule = load("1f1b", len(forward), case["global_batch"] // plan["replicas"])
    spans = simulate(schedule, Durations(forward, backward, 0, case["link"])).spans
    rings = all_reduce(case, plan)
    total = max(spans[stage][-1].end + ring for stage, ring in enumerate(rings))
    busy = [sum(span.end - span.start for span in spans[stage]) / total for stage in spans]
    return Step(total, busy, needed, rings)


def bound(case: Case) -> float:
    """Return a time, in ms, that no plan beats: all GPUs compute all the time, at their speed."""
    speed = sum(spec["gpus"] / sum(spec["layer"]) for spec in case["kinds"].values())
    head = min(sum(spec["head"]) / sum(spec["layer"]) for spec in case["kinds"].values())
    return case["global_batch"] * (case["layers"] + head) / speed


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


def search(case: Case, simulated: int = 20) -> dict[str, Any]:
    """Return the fastest of the balanced plans of every number of replicas and every placement.

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
    return min((plan for _, plan in candidates[:simulated]),
               key=lambda plan: step(case, plan).milliseconds)


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
    """Yield placements on all GPUs, and on all GPUs of only some kinds.

    Where there are too many, only those in which stages of one kind are neighbors.
    """
    for size in range(len(counts), 0, -1):
        for chosen in combinations(counts, size):
            stages = sum(counts[kind] for kind in chosen)
            ways = factorial(stages) // prod(factorial(counts[kind]) for kind in chosen)
            if stages and ways <= MOST_PLACEMENTS:
                yield from placements({kind: counts[kind] for kind in chosen})
            elif stages:
                yield from (tuple(kind for kind in order for _ in range(counts[kind]))
                            for order in permutations(chosen))


def _plan(replicas: int, kinds: Sequence[str], layers: Sequence[int]) -> dict[str, Any]:
    return {"replicas": replicas,
            "stages": [list(stage) for stage in zip(kinds, layers, strict=True)]}
