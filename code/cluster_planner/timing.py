"""The time of a step: an event simulation of the pipeline schedule, and then the step's end.

Many partitions are simulated at once: every quantity is an array over the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from cluster_planner.stages import Stages
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, last_ends, passes
from pipeline_schedules.ends import Pass

WIDE = 20  # stages from which an array of a single partition's passes is faster than floats


def step_times(stages: Stages, splits: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the simulated time of a step for each of several partitions.

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


def pass_ends(forward: Sequence[float], backward: Sequence[float], send: Sequence[float],
              micro_batches: int) -> np.ndarray:
    """Return when each stage finishes its last pass under 1F1B, [p].

    Args:
        forward: time of each stage's forward pass.
        backward: time of its backward pass.
        send: time of a message across each boundary.
        micro_batches: of the replica.
    """
    order = passes("1f1b", len(forward), micro_batches)
    return np.array(last_ends(order, {FORWARD: forward, BACKWARD: backward}, send))


def _ends(stages: Stages, layers: np.ndarray) -> np.ndarray:
    """Return when each stage finishes its last pass, [c, p]."""
    if stages.chunks > 1:
        return _interleaved_ends(stages, layers)
    rows = np.arange(layers.shape[1])
    forward, backward = stages.forward[rows, layers], stages.backward[rows, layers]
    split = isinstance(stages.weight, np.ndarray)
    weight = stages.weight[rows, layers] if split else np.zeros_like(forward)
    if stages.schedule == "gpipe":
        return _gpipe_ends(forward, backward, stages.send, stages.micro_batches)
    if len(layers) == 1 and len(rows) < WIDE:  # plain floats are faster than small arrays
        plain = {FORWARD: forward[0].tolist(), BACKWARD: backward[0].tolist(),
                 WEIGHT: weight[0].tolist()}
        order = passes(stages.schedule, layers.shape[1], stages.micro_batches)
        return np.array([last_ends(order, plain, stages.send.tolist())])
    return _waves(stages.schedule, layers.shape[1], stages.micro_batches).ends(
        np.concatenate([forward, backward, weight], axis=1).T, stages.send)


def _gpipe_ends(forward: np.ndarray, backward: np.ndarray, send: np.ndarray, micro_batches: int
                ) -> np.ndarray:
    """Return when each stage finishes its last pass under GPipe, [c, p].

    Equal micro-batches pass through the stages without waiting for a free buffer: the last one
    leaves a stage after one pass of each stage so far, and m - 1 further passes of the slowest.
    """
    def last(times: np.ndarray, sends: np.ndarray) -> np.ndarray:
        sent = np.concatenate([[0.0], np.cumsum(sends)])
        return (np.cumsum(times, axis=1) + sent
                + (micro_batches - 1) * np.maximum.accumulate(times, axis=1))

    turn = last(forward, send)[:, -1:]  # then the last stage begins with its backward passes
    return turn + last(backward[:, ::-1], send[::-1])[:, ::-1]


def _interleaved_ends(stages: Stages, layers: np.ndarray) -> np.ndarray:
    """Return when each stage finishes its last pass, with layers in equal chunks, [c, p]."""
    count, chunks = layers.shape[1], stages.chunks
    rows, times = np.arange(count), []
    for whole in (stages.forward, stages.backward):
        edge = whole[:, :1].T  # the embedding, in the first chunk, or the head, in the last one
        chunk = (whole[rows, layers] - edge) / chunks
        for number in range(chunks):
            here = np.zeros(count)
            here[0] += edge[0, 0] * (number == 0)
            here[-1] += edge[0, -1] * (number == chunks - 1)
            times.append(chunk + here)
    return _waves("interleaved", count, stages.micro_batches, chunks).ends(
        np.concatenate(times, axis=1).T, stages.send)


@lru_cache(maxsize=64)
def _waves(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> Waves:
    return Waves(passes(schedule, stages, micro_batches, chunks), stages, chunks)


class Waves:
    """The passes of a schedule in waves: passes that depend only on earlier waves.

    Their ends are computed together, for all partitions, which is what makes simulating a batch of
    partitions cheap. Position 0 stands for the start of the step.
    """

    def __init__(self, order: Sequence[Pass], stages: int, chunks: int) -> None:
        kinds = {FORWARD: 0, BACKWARD: 1, WEIGHT: 2}
        wave, latest, columns = [], [-1] * stages, []
        for position, (kind, stage, source, boundary, chunk) in enumerate(order):
            before = latest[stage]
            latest[stage] = position
            needed = [at for at in (before, source) if at is not None and at >= 0]
            wave.append(1 + max((wave[at] for at in needed), default=-1))
            columns.append(((kinds[kind] * chunks + chunk) * stages + stage, before,
                            -1 if source is None else source,
                            stages if boundary is None else boundary))
        by_wave = np.argsort(wave, kind="stable")
        rank = np.zeros(len(order) + 1, dtype=int)  # [-1] is the start
        rank[by_wave] = np.arange(1, len(order) + 1)
        table = np.array(columns)[by_wave]
        self.rows, self.boundaries = table[:, 0], table[:, 3]
        self.before, self.sources = rank[table[:, 1]], rank[table[:, 2]]
        self.starts = [0, *np.cumsum(np.bincount(wave)).tolist()]
        self.last = rank[latest]

    def ends(self, times: np.ndarray, send: np.ndarray) -> np.ndarray:
        """Return when each stage finishes its last pass, [c, p].

        Args:
            times: of the forward, the backward, and the weight gradients' passes: per kind, chunk,
                and stage, [.., c].
            send: of a message across the boundary behind each stage.
        """
        sent = np.zeros(1 + len(self.last))
        sent[:len(send)] = send
        sends = sent[self.boundaries][:, None]
        ends = np.zeros((len(self.rows) + 1, times.shape[1]))
        for start, stop in pairwise(self.starts):
            wave = slice(start, stop)
            arrived = ends[self.sources[wave]] + sends[wave]
            ends[start + 1:stop + 1] = (np.maximum(ends[self.before[wave]], arrived)
                                        + times[self.rows[wave]])
        return ends[self.last].T
