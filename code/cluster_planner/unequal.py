"""Replicas that take different numbers of micro-batches, each as many as its GPUs can.

The replicas of a stage have the same layers, because they sum their gradients, but their GPUs may
be of different kinds. With equal numbers of micro-batches, all replicas are as slow as the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from cluster_planner import partition
from cluster_planner.partition import Partition
from cluster_planner.placement import Placement
from cluster_planner.plans import ClusterPlan, added, least_seconds
from cluster_planner.profiles import Key, ModelSpec, Profiles
from cluster_planner.stages import Stages, TrainingConfig, stages_of
from cluster_planner.timing import pass_ends

MOST = 500  # placements that are tried


class Candidate(NamedTuple):
    """A layout that may have a plan with unequal replicas.

    Attributes:
        bound: lower bound of the seconds of a step.
        rate: dollars per hour; None without prices.
        config: the other choices.
        placements: returns its placements, which takes time.
    """

    bound: float
    rate: float | None
    config: TrainingConfig
    placements: Callable[[], Sequence[Placement]]


class Shares(NamedTuple):
    """A plan with unequal replicas.

    Attributes:
        stages: costs of the stages, each as slow as its GPUs on average.
        partition: layers per stage, and the simulated seconds of a step.
        micro_batches: of each replica.
    """

    stages: Stages
    partition: Partition
    micro_batches: tuple[int, ...]


def extended(plans: list[ClusterPlan], candidates: Iterable[Candidate], model: ModelSpec,
             profiles: Profiles) -> list[ClusterPlan]:
    """Return the plans with those with unequal replicas that no other beats.

    Args:
        plans: the plans with equal replicas.
        candidates: the layouts, those with the least bounds first.
        model: the model and the batch.
        profiles: costs of the model's parts.
    """
    tried = 0
    for bound, rate, config, placements in candidates:
        if bound >= least_seconds(plans, rate or 0):
            continue
        for placement in placements():
            if tried == MOST:
                return plans
            if all(len(kinds) == 1 for kinds in placement.kinds):
                continue
            tried += 1
            made = best(model, placement, config, profiles, least_seconds(plans, rate or 0))
            if made is not None:
                plans = added(plans, ClusterPlan(placement, config, made.partition, made.stages,
                                                 rate, made.micro_batches))
    return plans


def best(model: ModelSpec, placement: Placement, config: TrainingConfig, profiles: Profiles,
         below: float) -> Shares | None:
    """Return a plan with unequal replicas on a placement, or None if none is faster than `below`.

    The layers are split as if each stage were as slow as its GPUs on average.

    Args:
        model: the model and the batch.
        placement: with replicas on unlike GPUs.
        config: with 1F1B.
        profiles: costs of the model's parts.
        below: seconds of a step.
    """
    stages = stages_of(model, placement, config, profiles)
    total = model.global_batch // config.micro_batch
    if stages is None or stages.micro_batches < placement.sizes.pipeline:
        return None  # more micro-batches than now would need more memory
    forward, backward = (_times(model, placement, config, profiles, name)
                         for name in ("forward", "backward"))
    average = [1 / (1 / times).mean(axis=0) for times in (forward, backward)]
    made = partition.best(replace(stages, forward=average[0], backward=average[1]))
    if made is None:
        return None
    rows = np.arange(placement.sizes.pipeline)
    times = [(tuple(one[rows, made.layers]), tuple(other[rows, made.layers]))
             for one, other in zip(forward, backward, strict=True)]
    slowest = (forward + backward)[:, rows, made.layers].max(axis=1)
    if total / (1 / slowest).sum() >= below:  # even if all replicas were always busy
        return None
    counts, ready = shared(times, tuple(stages.send), total)
    if len(ready) > 1 and stages.ends:
        ready[0] = ready[-1] = max(ready[0], ready[-1]) + stages.ends
    seconds = float((ready + stages.sync[rows, made.layers]).max()
                    + stages.update[rows, made.layers].max())
    if seconds >= below:
        return None
    return Shares(stages, replace(made, time=seconds), counts)


def shared(times: Sequence[tuple], send: tuple, total: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Share micro-batches among replicas, and return each one's number and the stages' ends, [p].

    They go, one by one, to the replica that finishes first with one more, which is optimal: a
    replica never gets faster by taking more.

    Args:
        times: by replica, the seconds of each stage's forward and backward pass.
        send: the seconds of each send.
        total: the micro-batches of a step.
    """
    @cache
    def ends(passes: tuple, count: int) -> np.ndarray:
        return pass_ends(*passes, send, count)

    counts = [1] * len(times)
    for _ in range(total - len(times)):
        following = [ends(passes, count + 1).max()
                     for passes, count in zip(times, counts, strict=True)]
        counts[int(np.argmin(following))] += 1
    return tuple(counts), np.max([ends(passes, count)
                                  for passes, count in zip(times, counts, strict=True)], axis=0)


def _times(model: ModelSpec, placement: Placement, config: TrainingConfig, profiles: Profiles,
           name: str) -> np.ndarray:
    """Return the seconds of a pass on each replica's GPUs, [d, p, l + 1]; never quite 0."""
    sizes, counts = placement.sizes, np.arange(model.layers + 1)
    table = np.empty((sizes.data, sizes.pipeline, model.layers + 1))
    for replica in range(sizes.data):
        for stage in range(sizes.pipeline):
            node = placement.nodes[(stage * sizes.data + replica) * sizes.tensor]
            profile = profiles.get(Key(placement.order[node].card.name, sizes.tensor,
                                       config.micro_batch, config.recompute))
            edges = ((stage == 0) * getattr(profile.embedding, name)
                     + (stage == sizes.pipeline - 1) * getattr(profile.head, name))
            table[replica, stage] = edges + counts * getattr(profile.layer, name)
    return np.maximum(table, 1e-12)
