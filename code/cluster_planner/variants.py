"""Other schedules for plans that the search has found with 1F1B.

ZB-H1 splits the backward pass, and interleaved 1F1B gives a stage several chunks. Their times have
no bound as tight as that of 1F1B, so they are tried on the best plans alone, and simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cluster_planner import partition
from cluster_planner.partition import Partition
from cluster_planner.placement import Placement
from cluster_planner.plans import ClusterPlan, added, least_seconds
from cluster_planner.profiles import RECOMPUTE, ModelSpec, Profiles
from cluster_planner.stages import Stages, TrainingConfig, stages_of

MOST_CHUNKS = 8
VARIED = 24  # plans whose schedule is replaced by others
NEAR = 1.15  # times as slow as what is found in the end, at most
Variant = tuple[TrainingConfig, Stages, Partition]


def replaced(model: ModelSpec, best: list[ClusterPlan], pipelines: Sequence[ClusterPlan],
             profiles: Profiles) -> list[ClusterPlan]:
    """Return the best plans, with other schedules for those where they are faster.

    Args:
        model: the model and the batch.
        best: the plans so far.
        pipelines: plans with 1F1B, the best among them.
        profiles: costs of the model's parts.
    """
    def slower(plan: ClusterPlan) -> float:
        return plan.seconds / least_seconds(best, plan.dollars_per_hour or 0)

    near = sorted((plan for plan in pipelines if slower(plan) <= NEAR), key=slower)
    for plan in near[:VARIED]:
        limit = least_seconds(best, plan.dollars_per_hour or 0)
        for config, stages, made in variants(model, plan.placement, plan.config,
                                             plan.partition.layers, profiles, limit):
            best = added(best, replace(plan, config=config, stages=stages, partition=made))
    return best


def variants(model: ModelSpec, placement: Placement, config: TrainingConfig,
             split: tuple[int, ...], profiles: Profiles, below: float) -> Iterator[Variant]:
    """Yield ZB-H1 and interleaved 1F1B in place of a schedule, where they fit and are faster.

    A schedule that keeps more activations may need more recomputation, so all kinds are tried.

    Args:
        model: the model and the batch.
        placement: of the plan.
        config: its other choices.
        split: its layers per stage, with which ZB-H1 begins.
        profiles: costs of the model's parts.
        below: seconds of a step; what takes as long is left out.
    """
    for recompute in RECOMPUTE:
        for schedule, chunks in (("zb-h1", 1), *_interleaved(model, placement, config)):
            chosen = config._replace(recompute=recompute, schedule=schedule, chunks=chunks)
            stages = stages_of(model, placement, chosen, profiles)
            if stages is None:
                continue
            made = (partition.even if chunks > 1 else _from(split))(stages, below)
            if made is not None:
                below = min(below, made.time)
                yield chosen, stages, made


def _from(split: tuple[int, ...]) -> partition.Partitioner:
    def improve(stages: Stages, below: float = np.inf) -> Partition | None:
        return partition.improved(stages, split, below)

    return improve


def _interleaved(model: ModelSpec, placement: Placement, config: TrainingConfig
                 ) -> Iterator[tuple[str, int]]:
    """Yield interleaved 1F1B with each number of equal chunks: the trainer has no other ones."""
    p = placement.sizes.pipeline
    micro_batches = model.global_batch // (config.micro_batch * placement.sizes.data)
    if model.layers % p == 0 and micro_batches % p == 0:
        for chunks in range(2, min(model.layers // p, MOST_CHUNKS) + 1):
            if model.layers // p % chunks == 0:
                yield "interleaved", chunks
