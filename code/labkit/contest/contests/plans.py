"""Plans: the shortest modeled step on a cluster with several kinds of GPUs."""

from __future__ import annotations

from random import Random
from typing import Any

from cluster_planner.case_model import CASE, InvalidPlan, bound, room, staged, step
from cluster_planner.case_planners import amp, even, fasop, proportional, search
from labkit.contest.declaration import CaseGroup, Contest, Disqualified, Ghost, Given, Scored

RULES = f"""\
plan(case) returns a plan: the number of replicas, and the pipeline stages in order, each with its
kind of GPU and its number of transformer layers. The sum is case["layers"]; only the first and the
last stage may have none:

  {{"replicas": 4, "stages": [["a10", 6], ["a10", 7], ["a100", 17], ["a100", 18]]}}

Each stage runs on one GPU per replica. GPUs may stay unused. The case is a dictionary:

{CASE}

Each replica runs global_batch / replicas micro-batches by 1F1B. Then every stage all-reduces its
gradients. Transfers between stages overlap with computation, the all-reduce does not. The score is
a time that no plan beats, divided by the step's: all GPUs computing all the time. A plan that needs
GPUs that are not there, or more memory than a GPU has, is disqualified."""

HINTS = {
    "no plan": 'Return {"replicas": 2, "stages": [["a100", 12], ["a10", 4]]}, with the kinds and '
               "sizes of the case.",
    "replicas": 'Use one of the numbers in case["replicas"].',
    "layers": 'Distribute all of case["layers"], each to one stage.',
    "empty stage": "Leave the GPU out, or give it a layer: the trainer cannot run such a stage.",
    "GPUs": "A stage needs one GPU per replica.",
    "memory": "1F1B keeps as many activations on a stage as there are stages from it to the end: "
              "give early stages fewer layers, or GPUs with more memory.",
}
# Forward and backward ms of a layer of GPT-2 XL with 16 heads and micro-batch 1 on the virtual GPU,
# in fp16; GiB; GB/s of an all-reduce within a node, a round number for NVLink or PCIe.
GPUS = {
    "h100": ([0.27, 0.50], 80, 300), "a100": ([0.61, 1.13], 40, 200),
    "v100": ([1.22, 2.34], 32, 60), "a10": ([2.08, 3.91], 24, 10), "t4": ([3.54, 6.76], 16, 6)}
RESERVED = 2  # GiB of each GPU: CUDA's context, NCCL's buffers, and, in part, what is no layer
HEAD, EMBEDDING = 2.7, 0.05  # their time, in layers: a mean of these GPUs


def score(case: Given, answer: Any) -> Scored:
    """Score a plan by its modeled step. Raises Disqualified."""
    try:
        planned = step(case, answer)
    except InvalidPlan as error:
        raise Disqualified(error.kind, str(error), HINTS[error.kind]) from error
    best = bound(case)
    return Scored(best / planned.milliseconds,
                  f"{planned.milliseconds:,.1f} ms; no plan takes less than {best:,.1f} ms")


def _case(random: Random, kinds: int = 2, *, network: tuple[float, float] = (3, 12),
          wide: bool = False) -> dict[str, Any]:
    """Draw a case.

    Args:
        random: the random number generator.
        kinds: the number of kinds of GPUs.
        network: minimum and maximum GB/s of an all-reduce across nodes.
        wide: whether layers and activations are twice as wide, so that memory is short.
    """
    width = random.uniform(1.7, 2.2) if wide else random.uniform(0.8, 1.2)
    speed = random.uniform(*network)

    def kind(name: str) -> dict[str, Any]:
        layer, memory, inside = GPUS[name]
        times = [round(time * width**2 * random.uniform(0.95, 1.05), 3) for time in layer]
        return {"gpus": 4 * random.randint(1, 3), "per_node": 4, "layer": times,
                "embedding": [round(EMBEDDING * time, 3) for time in times],
                "head": [round(HEAD * time / width, 3) for time in times],
                "memory": memory - RESERVED, "inside": inside, "network": round(speed, 2)}

    replicas = [1, 2, 4]
    return {"layers": random.randint(20, 48), "replicas": replicas,
            "global_batch": max(replicas) * random.randint(6, 16),
            "link": round(10 * width / speed, 2), "state": round(0.46 * width**2, 3),
            "activation": round(0.14 * width, 3), "gradients": round(0.061 * width**2, 4),
            "kinds": {name: kind(name) for name in random.sample(list(GPUS), kinds)}}


def _drawn(**options: Any) -> Any:
    """Return a function that draws cases for which there is a plan with room for all layers."""
    def draw(random: Random) -> dict[str, Any]:
        while True:
            case = _case(random, **options)
            replicas = case["replicas"][0]
            stages = [name for name, spec in case["kinds"].items()
                      for _ in range(spec["gpus"] // replicas)]
            if sum(room(case, staged(replicas, stages, [0] * len(stages)))) >= case["layers"]:
                return case  # without the stages that are not needed, the others have more room
    return draw


def _group(name: str, title: str, **options: Any) -> CaseGroup:
    draw, random = _drawn(**options), Random(f"open cases: {name}")
    return CaseGroup(name, title, [draw(random), draw(random)], draw, secret=3)


CONTEST = Contest(
    name="plans", title="Plans for clusters with several kinds of GPUs", rules=RULES,
    file="plans.py", entry="plan", seconds=20,
    groups=(
        _group("two", "two kinds of GPUs"),
        _group("three", "three kinds of GPUs", kinds=3),
        _group("network", "a slow network between the nodes", network=(0.8, 2)),
        _group("memory", "wide layers, which need much memory", wide=True)),
    score=score,
    ghosts=(
        Ghost("even", "the same number of layers everywhere", even),
        Ghost("proportional", "layers in proportion to speed", proportional),
        Ghost("amp", "AMP: the least of its cost model (Li et al. 2022)", amp),
        Ghost("fasop", "FASOP: its greedy splits, simulated (Hwang et al. 2024)", fasop),
        Ghost("balanced", "the fastest best split of many placements, improved", search)),
    masks=("cluster_planner",))
