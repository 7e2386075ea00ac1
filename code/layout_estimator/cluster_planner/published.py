"""Partitions of published planners, as baselines for `lab plan --planner`.

Both run under the same search, profiles, and memory limits as partition.best, so a comparison shows
what the partition and the ranking are worth.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from layout_estimator.cluster_planner.partition import Partition, exact, modeled_seconds
from layout_estimator.cluster_planner.stages import Stages
from layout_estimator.cluster_planner.timing import step_seconds
from pipeline_schedules import fasop as greedy


def fasop(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return FASOP's greedy partition (Hwang et al. 2024), simulated, or None if it does not fit.

    As its program does, it counts a message as part of the stage that receives it, except at the
    ends of the pipeline.

    Args:
        stages: costs of the stages.
        below: as for partition.best.
    """
    times = stages.forward + stages.backward
    times[1:-1] += stages.send[:-1, None]
    if len(times) >= times.shape[1]:  # each stage gets a layer
        return None
    split = tuple(greedy(times.tolist()))
    if not stages.fits[range(len(split)), split].all():
        return None
    made = Partition(split, modeled_seconds(stages, split), float(step_seconds(stages, [split])[0]))
    return made if made.seconds < below else None


def amp(stages: Stages, below: float = np.inf) -> Partition | None:
    """Return AMP's partition with its modeled time as `seconds`, or None if it does not fit.

    AMP (Li et al. 2022) ranks plans by a formula, and leaves memory to a trial run. In its authors'
    program (src/pipe.py and src/cost_het_cluster.py of DachengLi1/AMP), a step takes the sum of all
    stages' passes and sends, m - 1 times the slowest stage's passes, and the slowest gradient
    synchronization. That is modeled_seconds plus a synchronization, with three differences: the
    program counts each send in one direction, averages the layer times of all kinds of GPUs, and
    splits evenly if m = 1. Here, sends count in both directions and a stage is as slow as its own
    GPUs; the end of the step also has the optimizer and the tied embedding.

    Args:
        stages: costs of the stages.
        below: as for partition.best, of the modeled time.
    """
    counts = np.arange(stages.forward.shape[1])
    roomy = replace(stages, fits=np.broadcast_to(counts > 0, stages.forward.shape))
    for _, split in exact(roomy)[:1]:
        rows = range(len(split))
        if stages.fits[rows, split].all():
            modeled = modeled_seconds(stages, split)
            seconds = modeled + stages.ends + float(
                stages.sync[rows, split].max() + stages.update[rows, split].max())
            return Partition(split, modeled, seconds) if seconds < below else None
    return None
