"""The time of a step: an event simulation of the pipeline schedule, and then the step's end.

Many partitions are simulated at once: every quantity is an array over the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layout_estimator.cluster_planner.stages import Stages
from pipeline_schedules import BACKWARD, FORWARD, last_ends, passes


def step_seconds(stages: Stages, splits: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the simulated time of a step, in seconds, for each of several partitions.

    A pass starts when its stage is idle and its input has arrived; sends overlap with passes. After
    its last pass, a stage all-reduces its gradients; the optimizer waits for all stages, because it
    clips by the norm of all gradients.

    Args:
        stages: costs of the stages.
        splits: the partitions, [c, p] layers.
    """
    layers = np.asarray(splits, dtype=int)
    rows = np.arange(layers.shape[1])
    ready = _ends(stages, layers)
    if len(rows) > 1 and stages.ends:
        joined = np.maximum(ready[:, 0], ready[:, -1]) + stages.ends
        ready[:, 0] = ready[:, -1] = joined
    ready = ready + stages.sync[rows, layers]
    return ready.max(axis=1) + stages.update[rows, layers].max(axis=1)


def _ends(stages: Stages, layers: np.ndarray) -> np.ndarray:
    """Return when each stage finishes its last pass, in seconds, [c, p]."""
    rows = np.arange(layers.shape[1])
    times = {FORWARD: stages.forward[rows, layers].T, BACKWARD: stages.backward[rows, layers].T}
    order = passes(stages.schedule, layers.shape[1], stages.micro_batches)
    if len(layers) == 1:  # plain floats are faster than arrays of one element
        plain = {kind: time[:, 0].tolist() for kind, time in times.items()}
        return np.array([last_ends(order, plain, stages.send.tolist())])
    zero = np.zeros(len(layers))
    return np.array(last_ends(order, times, stages.send, np.maximum, zero)).T
