"""Cases: a cluster of unlike GPUs and a model as one dictionary, and the modeled step of its plans.

Lab 14 and the contest `plans` pose them. A **plan** says how many replicas train, and for
every pipeline stage, its kind of GPU and its number of transformer layers:

    {"replicas": 4, "stages": [["a10", 6], ["a10", 7], ["a100", 17], ["a100", 18]]}

Every stage runs on one GPU per replica. A **case** describes the cluster and the model; CASE below
has its keys and units. `case_stages` is a case as partition.py reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster_planner.stages import Stages
from cluster_planner.timing import pass_ends
from minimegatron import formulas
from pipeline_schedules import Durations, Timeline, empty_stage, fewest_layers, load, simulate

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

NEAR = 1 + 1e-9  # of a size is larger only by rounding

Case = Mapping[str, Any]
Plan = Mapping[str, Any]
Place = tuple[int, tuple[str, ...]]  # replicas, and the kind of GPU of every stage


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


def staged(replicas: int, kinds: Sequence[str], layers: Sequence[int]) -> dict[str, Any]:
    """Return a plan."""
    return {"replicas": replicas,
            "stages": [list(stage) for stage in zip(kinds, layers, strict=True)]}


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
    empty = empty_stage([count for _, count in stages])
    if empty is not None:
        raise InvalidPlan("empty stage", f"stage {empty} has no layers; only the first stage (the "
                                         "embedding) and the last one (the head) may have none")
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
    stages, micro_batches = len(plan["stages"]), case["global_batch"] // plan["replicas"]
    return [formulas.in_flight(stages, stage, micro_batches) for stage in range(stages)]


def room(case: Case, plan: Plan) -> list[int]:
    """Return the most layers for which each stage has memory."""
    return [int(case["kinds"][kind]["memory"] / (case["state"] + count * case["activation"]) + 1e-9)
            for (kind, _), count in zip(plan["stages"], in_flight(case, plan), strict=True)]


def case_stages(case: Case, place: Place) -> Stages:
    """Return the costs of the stages of a placement, with times in ms.

    Args:
        place: the placement; the case may lack the GPUs for it.
    """
    replicas, kinds = place
    counts, specs = np.arange(case["layers"] + 1), [case["kinds"][kind] for kind in kinds]
    empty, single = (staged(replicas, kinds, [count] * len(kinds)) for count in (0, 1))
    edges, each = np.array(durations(case, empty)), np.array([spec["layer"] for spec in specs])
    forward, backward = edges[:, :, None] + counts * each.T[:, :, None]
    rings = counts * np.array(all_reduce(case, single))[:, None]
    gigabytes = np.array([memory(case, single), [spec["memory"] for spec in specs]])[:, :, None]
    least, most = np.array([fewest_layers(len(kinds)), room(case, empty)])[:, :, None]
    return Stages(case["global_batch"] // replicas, "1f1b", forward, backward,
                  (counts >= least) & (counts <= most),
                  (counts * gigabytes[0] - gigabytes[1]) * 2**30,
                  np.full(len(kinds) - 1, case["link"]), rings, np.zeros_like(rings))


def step(case: Case, plan: Any) -> Step:
    """Return the modeled step of a plan. Raises InvalidPlan, also if a stage runs out of memory."""
    refuse_invalid(case, plan)
    needed = memory(case, plan)
    for stage, ((kind, _), gigabytes) in enumerate(zip(plan["stages"], needed, strict=True)):
        if gigabytes > case["kinds"][kind]["memory"] * NEAR:
            raise InvalidPlan("memory", f"stage {stage} needs {gigabytes:.1f} GiB; its {kind} has "
                                        f"{case['kinds'][kind]['memory']:g} GiB")
    forward, backward = durations(case, plan)
    micro_batches = case["global_batch"] // plan["replicas"]
    ends = pass_ends(forward, backward, [case["link"]] * len(forward), micro_batches).tolist()
    rings = all_reduce(case, plan)
    total = max(end + ring for end, ring in zip(ends, rings, strict=True))
    busy = [micro_batches * (one + other) / total
            for one, other in zip(forward, backward, strict=True)]
    return Step(total, busy, needed, rings)


def timeline(case: Case, plan: Plan) -> Timeline:
    """Return the passes of a plan's replicas, in ms, without the all-reduce."""
    forward, backward = durations(case, plan)
    schedule = load("1f1b", len(forward), case["global_batch"] // plan["replicas"])
    return simulate(schedule, Durations(forward, backward, 0, case["link"]))


def bound(case: Case) -> float:
    """Return a time, in ms, that no plan beats: all GPUs compute all the time, at their speed."""
    speed = sum(spec["gpus"] / sum(spec["layer"]) for spec in case["kinds"].values())
    head = min(sum(spec["head"]) / sum(spec["layer"]) for spec in case["kinds"].values())
    return case["global_batch"] * (case["layers"] + head) / speed
