"""The search over layouts, placements, and settings: branch and bound for time and dollars.

A branch is a choice of nodes, parallel sizes, and training configuration; below it are its
placements, and below these their partitions. A branch is cut if its lower bounds of time and
dollars show that some plan found already is no slower and no more expensive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import gcd
from typing import NamedTuple

import numpy as np

from cluster_planner import partition, unequal, variants
from cluster_planner.partition import Partitioner
from cluster_planner.placement import (
    MOST_ORDERS,
    ParallelSizes,
    Placement,
    count_orders,
    placements,
    slowest_network,
)
from cluster_planner.plans import ClusterPlan, added, beats, least_seconds
from cluster_planner.profiles import MICRO_BATCHES, RECOMPUTE, Key, ModelSpec, Profiles
from cluster_planner.stages import TrainingConfig, ends_seconds, rows_of, stages_of
from virtualgpu.net.cluster_spec import NodeGroup

SCHEDULES = ("1f1b", "gpipe")
Used = tuple[tuple[NodeGroup, int], ...]  # groups, and how many of their nodes a plan uses


class Branch(NamedTuple):
    """A branch of the search.

    Attributes:
        bound: lower bound of the seconds of a step.
        rate: dollars per hour; 0 without prices.
        used: the nodes.
        sizes: the layout.
        config: the other choices.
    """

    bound: float
    rate: float
    used: Used
    sizes: ParallelSizes
    config: TrainingConfig


class SeatTable:
    """The seats of several placements of one layout.

    Attributes:
        placements: the placements.
        seats: the distinct pairs of a seat and the stage's number.
        numbers: each stage's pair, [c, p].
    """

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.placements, numbers = placements, {}
        self.numbers = np.array([[numbers.setdefault((seat, stage), len(numbers))
                                  for stage, seat in enumerate(placement.seats)]
                                 for placement in placements])
        self.seats = list(numbers)


@dataclass
class Search:
    """A search, and what it did.

    Attributes:
        model: the model and the batch.
        groups: the cluster's nodes.
        profiles: costs of the model's parts.
        prices: {GPU model's name: dollars per GPU-hour}; dollars count if all GPUs have one.
        link: the network between nodes; None: the slowest that one of the used nodes comes with.
        prune: whether to cut branches; without, the search is exhaustive.
        partitioner: splits the layers over the stages of a placement.
        unequal: whether to add plans with unequal replicas, which the trainer cannot run.
        sharded: whether replicas shard the optimizer state (ZeRO-1); both are tried by default.
        varied: whether the best plans are also tried with ZB-H1 and interleaved 1F1B.
        branches: how many there are.
        solved: for how many placements layers were split.
        every_order: whether every distinct placement was considered.
    """

    model: ModelSpec
    groups: Sequence[NodeGroup]
    profiles: Profiles
    prices: dict[str, float]
    link: str | None = None
    prune: bool = True
    partitioner: Partitioner = partition.best
    varied: bool = True
    unequal: bool = False
    sharded: tuple[bool, ...] = (False, True)
    branches: int = 0
    solved: int = 0
    every_order: bool = True
    _pipelines: list[ClusterPlan] = field(default_factory=list)
    _tables: dict[tuple[Used, ParallelSizes], SeatTable] = field(default_factory=dict)
    _placed: dict[tuple[Used, ParallelSizes], tuple[Placement, ...]] = field(default_factory=dict)

    @property
    def has_prices(self) -> bool:
        """Return whether all GPUs of the cluster have a price."""
        return all(group.card.name in self.prices for group in self.groups)

    def front(self) -> list[ClusterPlan]:
        """Return the plans that no other beats in both time and dollars, the fastest first.

        Without prices, that is the fastest plan only. The list is empty if no plan fits.
        """
        best: list[ClusterPlan] = []
        branches = sorted(self._branches(), key=lambda branch: branch.bound)
        self.branches = len(branches)
        for branch, placement in self._seeds(branches):
            plan = self._solve(branch, placement, best)
            if plan is not None:
                best = added(best, plan)
        for branch in branches:
            if branch.bound >= self._limit(best, branch.rate):
                continue
            self.every_order &= count_orders(dict(branch.used)) <= MOST_ORDERS
            for placement in self._by_bound(branch, best):
                plan = self._solve(branch, placement, best)
                if plan is not None:
                    best = added(best, plan)
        if self.varied:
            best = variants.replaced(self.model, best, self._pipelines, self.profiles)
        # A planner may have ranked them by a formula; what they are worth is simulated.
        timed = [replace(one, partition=partition.simulated(one.stages, one.partition))
                 for one in best]
        if self.unequal:
            timed = unequal.extended(timed, self._uneven(), self.model, self.profiles)
        return sorted((one for one in timed if not any(
            beats(other, one) for other in timed if other is not one)),
            key=lambda one: one.seconds)

    def _uneven(self) -> Iterator[unequal.Candidate]:
        """Yield the candidates of unequal.extended."""
        for branch in sorted(self._branches(equal=False), key=lambda branch: branch.bound):
            yield unequal.Candidate(branch.bound, branch.rate if self.has_prices else None,
                                    branch.config, partial(self._placements, branch))

    def _seeds(self, branches: Sequence[Branch]) -> Iterator[tuple[Branch, Placement]]:
        """Yield one placement for each choice of nodes and micro-batch, so that cuts begin early.

        The bound of a branch with few micro-batches is loose, so by bounds alone its turn comes
        before that of better plans.
        """
        seen = set()
        for branch in branches if self.prune else ():
            key = branch.used, branch.config.micro_batch
            if key not in seen:
                seen.add(key)
                yield branch, next(iter(self._placements(branch)))

    def _placements(self, branch: Branch) -> tuple[Placement, ...]:
        """Return the placements of a layout, which are the same for all settings."""
        key = branch.used, branch.sizes
        if key not in self._placed:
            self._placed[key] = tuple(placements(*key, self._link(branch.used)))
        return self._placed[key]

    def _by_bound(self, branch: Branch, best: list[ClusterPlan]) -> Iterator[Placement]:
        """Yield a branch's placements that may have a plan, those with the least bound first."""
        if not self.prune:
            yield from self._placements(branch)
            return
        key = branch.used, branch.sizes
        if key not in self._tables:
            self._tables[key] = SeatTable(self._placements(branch))
        least = placement_bounds(self.model, self._tables[key], branch.config, self.profiles)
        for at in np.argsort(least, kind="stable"):
            if least[at] < self._limit(best, branch.rate):
                yield self._tables[key].placements[at]

    def _solve(self, branch: Branch, placement: Placement, best: list[ClusterPlan]
               ) -> ClusterPlan | None:
        """Return the best plan of a placement, or None if there is none or others beat it."""
        limit = self._limit(best, branch.rate)
        if branch.bound >= limit:
            return None
        stages = stages_of(self.model, placement, branch.config, self.profiles)
        if stages is None or any(bound >= limit for bound in partition.lower_bounds(stages)):
            return None
        self.solved += 1
        made = self.partitioner(stages, limit)
        if made is None:
            return None
        plan = ClusterPlan(placement, branch.config, made, stages,
                           branch.rate if self.has_prices else None)
        if branch.sizes.pipeline > 1 and branch.config.schedule == "1f1b":
            self._pipelines.append(plan)
        return None if any(beats(one, plan) for one in best) else plan

    def _limit(self, best: list[ClusterPlan], rate: float) -> float:
        """Return the seconds from which on a branch at this rate is cut."""
        return least_seconds(best, rate) if self.prune else float("inf")

    def _link(self, used: Used) -> str:
        return self.link or slowest_network([group for group, count in used if count])

    def _branches(self, equal: bool = True) -> Iterator[Branch]:
        for counts in product(*(range(group.nodes + 1) for group in self.groups)):
            used = tuple((group, count) for group, count in zip(self.groups, counts, strict=True)
                         if count)
            rate = sum(group.per_node * count * self.prices.get(group.card.name, 0)
                       for group, count in used) if self.has_prices else 0.0
            for sizes in self._layouts(used):
                for config in self._configs(sizes):
                    if not equal and (config.schedule != "1f1b" or sizes.data == 1):
                        continue
                    bound = self._bound(used, sizes, config, equal)
                    if bound is not None:
                        yield Branch(bound, rate, used, sizes, config)

    def _layouts(self, used: Used) -> Iterator[ParallelSizes]:
        """Yield layouts whose tensor-parallel ranks stay on a node."""
        world = sum(group.per_node * count for group, count in used)
        together = gcd(*(group.per_node for group, _ in used)) if used else 0
        for tensor in _divisors(together):
            for pipeline in _divisors(world // tensor):
                if pipeline <= self.model.layers + 2:
                    yield ParallelSizes(tensor, pipeline, world // tensor // pipeline)

    def _configs(self, sizes: ParallelSizes) -> Iterator[TrainingConfig]:
        for micro_batch in MICRO_BATCHES:
            if self.model.global_batch % (micro_batch * sizes.data):
                continue
            # One replica has nothing to share, and one stage has nothing to order.
            strategies = self.sharded if sizes.data > 1 else (False,)
            for recompute, sharded, schedule in product(RECOMPUTE, strategies, SCHEDULES):
                if sizes.pipeline > 1 or schedule == "1f1b":
                    yield TrainingConfig(micro_batch, recompute, sharded, schedule)

    def _bound(self, used: Used, sizes: ParallelSizes, config: TrainingConfig, equal: bool
               ) -> float | None:
        """Return a lower bound of the seconds of a step, or None if a GPU has no profile.

        A stage is as slow as its slowest GPU, so the layers per second of all stages together are
        at most those of all GPUs, each counted as 1 / (t d) of a stage. The embedding and the head
        count as layers, as many as on the GPUs where they are the fewest. partition.lower_bounds
        adds that a micro-batch passes all layers, at best on the fastest GPUs.
        """
        rate, fastest, edges, ends = 0.0, float("inf"), float("inf"), float("inf")
        for group, count in used:
            profile = self.profiles.get(Key(group.card.name, sizes.tensor, config.micro_batch,
                                            config.recompute))
            if profile is None:
                return None
            rate += group.per_node * count / (sizes.tensor * sizes.data) / profile.layer.both
            fastest = min(fastest, profile.layer.both)
            edge = profile.embedding.both + profile.head.both
            edges, ends = min(edges, edge / profile.layer.both), min(ends, edge)
        micro_batches = self.model.global_batch // (config.micro_batch * sizes.data)
        slowest = (self.model.layers + edges) / rate
        trip = self.model.layers * fastest + ends
        if micro_batches <= sizes.pipeline or not equal:
            return max(micro_batches * slowest, trip)
        waiting = 0 if config.schedule == "gpipe" else (sizes.pipeline - 1) / 2
        return max(micro_batches * slowest, trip + (micro_batches - 1 - waiting) * slowest)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def placement_bounds(model: ModelSpec, table: SeatTable, config: TrainingConfig,
                     profiles: Profiles) -> np.ndarray:
    """Return a lower bound of the simulated seconds of a step for each placement, [c].

    It is looser than partition.lower_bounds, but most placements need no other, and infinite where
    no partition fits. As in partition.lower_bounds, the slowest stage computes
    m micro-batches, or m - 1 - w / 2 of them beside a round trip through all stages; here, the
    round trip takes the layers that add the least time, and w = p - 1.

    Args:
        model: the model and the batch.
        table: the seats of the placements.
        config: the choices besides them.
        profiles: costs of the model's parts.
    """
    first = table.placements[0]
    rows = rows_of(model, first.sizes, config, profiles, table.seats)
    if rows is None:
        return np.full(len(table.placements), np.inf)
    m = model.global_batch // (config.micro_batch * first.sizes.data)
    both, fits = rows["forward"] + rows["backward"] + rows["weight"], rows["fits"]
    every, least = np.arange(len(both)), fits.argmax(axis=1)
    most = np.where(fits.any(axis=1), least + fits.sum(axis=1) - 1, -model.layers - 1)
    inside = fits[:, 1:] & (np.arange(model.layers) >= least[:, None])
    reach = np.where(inside, both[:, 1:], np.inf)
    adds = np.where(inside, np.diff(both, axis=1), np.inf)
    at = table.numbers
    needs = model.layers - least[at].sum(axis=1)
    possible = (needs >= 0) & (most[at].sum(axis=1) >= model.layers)
    slowest = both[every, least][at].max(axis=1)
    through = both[every, least][at].sum(axis=1)
    for number in np.unique(needs[possible]).tolist():
        chosen = possible & (needs == number)
        if number:
            layers = np.partition(reach[at[chosen]].reshape(chosen.sum(), -1), number - 1, axis=1)
            slowest[chosen] = np.maximum(slowest[chosen], layers[:, number - 1])
            layers = np.partition(adds[at[chosen]].reshape(chosen.sum(), -1), number - 1, axis=1)
            through[chosen] += layers[:, :number].sum(axis=1)
    waiting = first.sizes.pipeline - 1 if config.schedule == "1f1b" else 0
    further = m - 1 - waiting / 2 if m > waiting + 1 else 0
    sends = np.array([2 * sum(placement.send_seconds(model.sent_bytes(config.micro_batch)))
                      for placement in table.placements])
    end = (np.array([ends_seconds(model, placement) for placement in table.placements])
           + rows["sync"][every, least][at[:, 0]] + rows["update"][every, least][at].max(axis=1))
    bounds = np.maximum(m * slowest, sends + through + further * slowest) + end
    return np.where(possible, bounds * (1 - 1e-12), np.inf)
