"""Pipelines of the contest `plans`: many splits of one placement, simulated at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations_with_replacement, permutations, product
from math import comb, factorial, prod
from typing import Any

import numpy as np

from labkit.contest.mixed_clusters import Case, all_reduce, durations
from labkit.contest.mixed_planners import placements, room, staged
from pipeline_schedules import BACKWARD, FORWARD, fewest_layers, last_ends, passes

MOST_PLACEMENTS = 500
FEW_ORDERS = 20  # of a choice of GPUs: then all are tried, else those with each kind together
CHOICES = 150  # ways to choose the stages of layers that move at once
BATCH = 32  # splits that are simulated at once
LESS = 1 - 1e-9  # of a time is shorter than by rounding

Place = tuple[int, tuple[str, ...]]  # replicas, and the kind of GPU of every stage


@dataclass(frozen=True, order=True)
class Timed:
    """A plan and its step in ms."""

    milliseconds: float
    pipeline: MixedPipeline = field(compare=False)
    layers: np.ndarray = field(compare=False)

    @property
    def plan(self) -> dict[str, Any]:
        """The plan, as the contest wants it."""
        return staged(*self.pipeline.place, self.layers.tolist())


class MixedPipeline:
    """Stages on given GPUs, and what many splits of the layers cost at once.

    Attributes:
        place: its replicas, and the kind of GPU of each stage.
        fewest: the layers that each stage needs, [p].
        room: the most layers of each stage, [p].
        edges: ms of the forward and backward passes without layers, [2, p].
        layer: ms that a layer adds, [2, p].
        ring: ms that a layer adds to the gradients' all-reduce, [p].
        micro_batches: of each replica.
        link: ms between stages.
    """

    def __init__(self, case: Case, place: Place) -> None:
        replicas, kinds = self.place = place
        empty = staged(replicas, kinds, [0] * len(kinds))
        self.fewest, self.room = np.array(fewest_layers(len(kinds))), np.array(room(case, empty))
        self.edges = np.array(durations(case, empty))
        self.layer = np.array([case["kinds"][kind]["layer"] for kind in kinds]).T
        self.ring = np.array(all_reduce(case, staged(replicas, kinds, [1] * len(kinds))))
        self.micro_batches, self.link = case["global_batch"] // replicas, case["link"]

    def improved(self, layers: np.ndarray, most: int) -> Timed:
        """Return the plan after moves of layers, as long as any of them makes the step shorter.

        The split whose slowest stage is fastest is not always the one with the shortest step: with
        few micro-batches, filling and draining the pipeline counts, too.

        Args:
            layers: of each stage, to begin with, [p].
            most: layers that may move at once.
        """
        least = float(self.milliseconds(layers[None])[0])
        while True:
            moved, time = self.fastest(self._moved(layers, 1), least * LESS)
            if moved is None and most > 1:
                moved, time = self.fastest(self._moved(layers, most), least * LESS)
            if moved is None:
                return Timed(least, self, layers)
            layers, least = moved, time

    def lean_splits(self, layers: int, fewest: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Return the split with the least total time for each limit on the slowest stage, [c, p].

        All layers are alike, so under a limit, the least total has as many layers as possible where
        they take the least time.

        Args:
            layers: of the model.
            fewest: layers of each stage, [p].
            most: layers of each stage, [p].
        """
        edges, each = self.edges.sum(axis=0), self.layer.sum(axis=0)
        order = np.argsort(each, kind="stable")
        limits = np.unique(edges[:, None] + np.arange(layers + 1) * each[:, None])
        under = np.minimum(np.floor((limits[:, None] - edges) / each + 1e-9), most).astype(int)
        under = under[(under >= fewest).all(axis=1)]
        spare = (under - fewest)[:, order]
        before = np.cumsum(spare, axis=1) - spare
        splits = np.repeat(fewest[None], len(under), axis=0)
        splits[:, order] += np.clip(layers - fewest.sum() - before, 0, spare)
        return splits[splits.sum(axis=1) == layers]

    def fastest(self, splits: np.ndarray, below: float) -> tuple[np.ndarray | None, float]:
        """Return the split with the shortest step, and its ms; None if all take at least `below`.

        Args:
            splits: the splits to compare, [c, p].
            below: a time in ms.
        """
        bounds, fastest = self.bounds(splits), None
        order = np.argsort(bounds, kind="stable")
        for start in range(0, len(order), BATCH):
            tried = order[start:start + BATCH]
            tried = tried[bounds[tried] < below]
            if not len(tried):
                break
            milliseconds = self.milliseconds(splits[tried])
            if milliseconds.min() < below:
                fastest, below = splits[tried[milliseconds.argmin()]], float(milliseconds.min())
        return fastest, below

    def milliseconds(self, splits: np.ndarray) -> np.ndarray:
        """Return the time of each split's step, [c], as mixed_clusters.step does."""
        forward, backward = (self.edges[:, None] + splits * self.layer[:, None]).swapaxes(1, 2)
        order, links = passes("1f1b", len(forward), self.micro_batches), [self.link] * len(forward)
        if len(splits) == 1:  # plain floats are faster than arrays of one element
            times = {FORWARD: forward[:, 0].tolist(), BACKWARD: backward[:, 0].tolist()}
            ends = [[end] for end in last_ends(order, times, links)]
        else:
            ends = last_ends(order, {FORWARD: forward, BACKWARD: backward}, links, np.maximum,
                             np.zeros(len(splits)))
        return (np.array(ends) + (splits * self.ring).T).max(axis=0)

    def bounds(self, splits: np.ndarray) -> np.ndarray:
        """Return a lower bound of each split's step in ms, [c].

        Before a stage starts, the first micro-batch passes through the stages before it; after it
        ends, the last gradient passes back through them. In between, the stage runs all its passes,
        and 1F1B makes it wait for a trip to the last stage and back twice: its first backward pass
        follows w + 1 forward passes, and its last forward pass comes before w + 1 backward passes,
        where w is the number of stages behind it. The other passes do not overlap with the trip.
        """
        forward, backward = self.edges[:, None] + splits * self.layer[:, None]
        both, links = forward + backward, self.link * np.arange(splits.shape[1])
        rings, work = splits * self.ring, self.micro_batches * both
        fill = np.cumsum(forward, axis=1) - forward + links
        trip = np.cumsum(both, axis=1) - both + 2 * links
        behind = np.arange(splits.shape[1])[::-1]
        after = both.sum(axis=1, keepdims=True) - trip + 2 * links - both + 2 * self.link * behind
        once = np.where(self.micro_batches > behind,
                        after - behind * np.minimum(forward, backward), 0)
        twice = np.where(self.micro_batches > behind + 1, 2 * after - behind * both, 0)
        work = work + np.maximum(np.maximum(once, twice), 0)
        return (work + np.maximum(fill + rings, trip + rings[:, :1])).max(axis=1)

    def _moved(self, layers: np.ndarray, most: int) -> np.ndarray:
        """Return the splits that have room and differ by up to `most` moves of a layer, [c, p]."""
        splits = layers + moves(len(layers), most)
        return splits[((splits >= self.fewest) & (splits <= self.room)).all(axis=1)]


@lru_cache(maxsize=64)
def moves(stages: int, most: int) -> np.ndarray:
    """Return how layers can move between stages, as the change of each stage, [c, p].

    Args:
        stages: the number of stages of the pipeline.
        most: the maximum number of layers that move; fewer, down to one, for many stages.
    """
    changes = []
    for count in range(1, most + 1):
        if count > 1 and comb(stages + count - 1, count) > CHOICES:
            break
        chosen = np.array(list(combinations_with_replacement(range(stages), count)))
        units = np.eye(stages, dtype=int)[chosen].sum(axis=1)  # how many of them each stage has
        taken, given = np.nonzero(units @ units.T == 0)  # no stage gives layers and gets some
        changes.append(units[given] - units[taken])
    return np.concatenate(changes)


def starts(case: Case) -> Iterator[Place]:
    """Yield the placements that planners begin with."""
    for replicas in case["replicas"]:
        yield from ((replicas, kinds) for kinds in _tried(
            {kind: spec["gpus"] // replicas for kind, spec in case["kinds"].items()}))


def _tried(counts: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield placements on some GPUs of each kind, and orders in which GPUs of a kind are neighbors.

    All distinct orders are among them where there are few.
    """
    every = prod(count + 1 for count in counts.values()) <= MOST_PLACEMENTS
    some = [range(count + 1) if every else {0, count // 2, count} for count in counts.values()]
    for chosen in product(*some):
        used = {kind: count for kind, count in zip(counts, chosen, strict=True) if count}
        orders = factorial(sum(chosen)) // prod(map(factorial, chosen))
        if used and (orders <= FEW_ORDERS or (orders <= MOST_PLACEMENTS and used == counts)):
            yield from placements(used)
        elif used:
            for order in permutations(used):
                yield tuple(kind for kind in order for _ in range(used[kind]))
