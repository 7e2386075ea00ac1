"""The search over layouts, placements, and settings: branch and bound for time and dollars.

A branch is a choice of nodes, parallel sizes, and training configuration; below it are its
placements, and below these their partitions. A branch is cut if its lower bounds of time and
dollars show that some plan found already is no slower and no more expensive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd
from typing import NamedTuple

import numpy as np

from layout_estimator.cli import MICRO_BATCHES
from layout_estimator.cluster_planner import bounds, partition
from layout_estimator.cluster_planner.partition import Partition, Partitioner
from layout_estimator.cluster_planner.placement import (
    MOST_ORDERS,
    ParallelSizes,
    Placement,
    count_orders,
    placements,
    slowest_network,
)
from layout_estimator.cluster_planner.profiles import RECOMPUTE, Key, Profiles
from layout_estimator.cluster_planner.stages import ModelSpec, Stages, TrainingConfig, stages_of
from layout_estimator.cluster_planner.variants import variants
from virtualgpu.net.cluster_spec import NodeGroup

SCHEDULES = ("1f1b", "gpipe")
VARIED = 24  # plans whose schedule is replaced by others
NEAR = 1.15  # times as slow as what is found in the end, at most
Used = tuple[tuple[NodeGroup, int], ...]  # groups, and how many of their nodes a plan uses


@dataclass(frozen=True)
class ClusterPlan:
    """A plan.

    Attributes:
        placement: its layout, on its nodes.
        config: its other choices.
        partition: its layers per stage.
        stages: what its stages cost.
        dollars_per_hour: of the GPUs that it uses; None if one has no price.
    """

    placement: Placement
    config: TrainingConfig
    partition: Partition
    stages: Stages = field(repr=False)
    dollars_per_hour: float | None = None

    @property
    def seconds(self) -> float:
        """Simulated seconds of a step."""
        return self.partition.seconds

    @property
    def dollars(self) -> float | None:
        """Dollars of a step."""
        if self.dollars_per_hour is None:
            return None
        return self.seconds * self.dollars_per_hour / 3600

    @property
    def gpus(self) -> int:
        """Number of GPUs that it uses."""
        return len(self.placement.nodes)


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
    branches: int = 0
    solved: int = 0
    every_order: bool = True
    _pipelines: list[ClusterPlan] = field(default_factory=list)
    _tables: dict[tuple[Used, ParallelSizes], bounds.SeatTable] = field(default_factory=dict)
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
                best = [one for one in best if not _beats(plan, one)] + [plan]
        for branch in branches:
            if branch.bound >= self._limit(best, branch.rate):
                continue
            self.every_order &= count_orders(branch.used) <= MOST_ORDERS
            for placement in self._by_bound(branch, best):
                plan = self._solve(branch, placement, best)
                if plan is not None:
                    best = [one for one in best if not _beats(plan, one)] + [plan]
        if self.varied:
            best = self._varied(best)
        # A planner may have ranked them by a formula; what they are worth is simulated.
        timed = [replace(one, partition=partition.simulated(one.stages, one.partition))
                 for one in best]
        return sorted((one for one in timed if not any(
            _beats(other, one) for other in timed if other is not one)),
            key=lambda one: one.seconds)

    def _varied(self, best: list[ClusterPlan]) -> list[ClusterPlan]:
        """Return the best plans, with other schedules for those where they are faster."""
        def slower(plan: ClusterPlan) -> float:
            return plan.seconds / _least(best, plan.dollars_per_hour or 0)

        near = sorted((plan for plan in self._pipelines if slower(plan) <= NEAR), key=slower)
        for plan in near[:VARIED]:
            limit = _least(best, plan.dollars_per_hour or 0)
            for config, stages, made in variants(self.model, plan.placement, plan.config,
                                                 plan.partition.layers, self.profiles, limit):
                faster = replace(plan, config=config, stages=stages, partition=made)
                best = [one for one in best if not _beats(faster, one)] + [faster]
        return best

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
            self._tables[key] = bounds.SeatTable(self._placements(branch))
        least = bounds.of_placements(self.model, self._tables[key], branch.config, self.profiles)
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
        return None if any(_beats(one, plan) for one in best) else plan

    def _limit(self, best: list[ClusterPlan], rate: float) -> float:
        """Return the seconds from which on a branch at this rate is cut."""
        return _least(best, rate) if self.prune else float("inf")

    def _link(self, used: Used) -> str:
        return self.link or slowest_network([group for group, count in used if count])

    def _branches(self) -> Iterator[Branch]:
        for counts in product(*(range(group.nodes + 1) for group in self.groups)):
            used = tuple((group, count) for group, count in zip(self.groups, counts, strict=True)
                         if count)
            rate = sum(group.per_node * count * self.prices.get(group.card.name, 0)
                       for group, count in used) if self.has_prices else 0.0
            for sizes in self._layouts(used):
                for config in self._configs(sizes):
                    bound = self._bound(used, sizes, config)
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
            for recompute, sharded, schedule in product(RECOMPUTE, (False, True), SCHEDULES):
                # One replica has nothing to share, and one stage has nothing to order.
                if (sizes.data > 1 or not sharded) and (sizes.pipeline > 1 or schedule == "1f1b"):
                    yield TrainingConfig(micro_batch, recompute, sharded, schedule)

    def _bound(self, used: Used, sizes: ParallelSizes, config: TrainingConfig) -> float | None:
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
        if micro_batches <= sizes.pipeline:
            return max(micro_batches * slowest, trip)
        waiting = 0 if config.schedule == "gpipe" else (sizes.pipeline - 1) / 2
        return max(micro_batches * slowest, trip + (micro_batches - 1 - waiting) * slowest)


def _least(plans: Sequence[ClusterPlan], rate: float) -> float:
    """Return the seconds below which none of these plans beats a plan at this rate."""
    return min((one.seconds * max(1.0, (one.dollars_per_hour or 0) / rate if rate else 1.0)
                for one in plans), default=float("inf"))


def _beats(one: ClusterPlan, other: ClusterPlan) -> bool:
    """Return whether a plan is at least as fast and cheap as another."""
    return one.seconds <= other.seconds and (one.dollars or 0) <= (other.dollars or 0)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
