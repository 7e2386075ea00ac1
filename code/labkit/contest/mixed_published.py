"""Published planners, by the model of mixed_clusters.py: FASOP and AMP, as ghosts of the contest.

Both take the placements of mixed_pipelines.starts, and neither considers memory when it
splits the layers: plans that do not fit are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labkit.contest.mixed_clusters import Case, InvalidPlan
from labkit.contest.mixed_pipelines import MixedPipeline, starts
from labkit.contest.mixed_planners import staged
from pipeline_schedules import fasop as fasop_split


def fasop(case: Case) -> dict[str, Any]:
    """Return FASOP's plan (Hwang et al. 2024): the fastest of its splits in a simulation of 1F1B.

    Raises:
        InvalidPlan: no plan fits.
    """
    counts, candidates = np.arange(case["layers"] + 1), []
    for pipeline in _pipelines(case):
        each = pipeline.layer.sum(axis=0)[:, None]
        split = fasop_split((pipeline.edges.sum(axis=0)[:, None] + counts * each).tolist())
        if (split <= pipeline.room).all():
            split = np.array([split])
            candidates.append((float(pipeline.bounds(split)[0]), len(candidates), pipeline, split))
    least, best = np.inf, None
    for bound, _, pipeline, split in sorted(candidates):
        if bound >= least:
            break
        milliseconds = float(pipeline.milliseconds(split)[0])
        if milliseconds < least:
            least, best = milliseconds, staged(*pipeline.place, split[0].tolist())
    return _fitting(best)


def amp(case: Case) -> dict[str, Any]:
    """Return AMP's plan (Li et al. 2022): the least by its cost model, not simulated.

    With the times t_s of the stages, the links c_s, the gradients' all-reduce r_s, and m
    micro-batches, a step costs sum_s t_s + 2 sum_s c_s + (m - 1) max_s t_s + max_s r_s. Of each
    placement, AMP takes the split with the least pipeline cost. The form is that of the authors'
    program (src/pipe.py and src/cost_het_cluster.py of DachengLi1/AMP), which counts each link
    once, averages the layer times of all kinds of GPUs, and splits evenly if m = 1. Here, a stage
    has the times of its own GPU.

    Raises:
        InvalidPlan: no plan fits.
    """
    least, best = np.inf, None
    for pipeline in _pipelines(case):
        split, cost = amp_split(pipeline, case["layers"])
        if cost < least and (split <= pipeline.room).all():
            least, best = cost, staged(*pipeline.place, split.tolist())
    return _fitting(best)


def _pipelines(case: Case) -> Iterator[MixedPipeline]:
    """Yield the placements in which every stage can have a layer, as both planners want it."""
    yield from (MixedPipeline(case, place) for place in starts(case)
                if len(place[1]) <= case["layers"])


def _fitting(plan: dict[str, Any] | None) -> dict[str, Any]:
    if plan is None:
        raise InvalidPlan("memory", "the model fits on no placement")
    return plan


def amp_split(pipeline: MixedPipeline, layers: int) -> tuple[np.ndarray, float]:
    """Return the split with the least cost of AMP's model, and the cost in ms.

    The optimum is that of the best limit on the slowest stage. Each stage has a layer.

    Args:
        pipeline: stages on given GPUs, at most as many as the layers.
        layers: of the model.
    """
    edges, each = pipeline.edges.sum(axis=0), pipeline.layer.sum(axis=0)
    splits = pipeline.lean_splits(layers, np.ones_like(pipeline.room), np.full_like(
        pipeline.room, layers))
    times = edges + splits * each
    costs = times.sum(axis=1) + (pipeline.micro_batches - 1) * times.max(axis=1)
    split = splits[costs.argmin()]
    return split, (float(costs.min()) + 2 * pipeline.link * (len(each) - 1)
                   + float((split * pipeline.ring).max()))
