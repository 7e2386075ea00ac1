"""The search of `lab estimate`: every layout, with the sharding strategies that may be worth it.

Each layout is estimated with the distributed optimizer first. That bounds the time and the memory
of its other strategies, and only those are estimated that could be faster or smaller than whatever
was found before. So the fastest layout and the Pareto front are the same as if all were estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from labcore.errors import LabError
from layout_estimator.requests import EstimateError, EstimateResult, read_flags, with_cluster
from layout_estimator.strategies import Bounds, Searched, Strategy, bounds

if TYPE_CHECKING:
    from layout_estimator.planner import RunPlan
    from minimegatron.arguments.table import EstimateConfig


class Layout(NamedTuple):
    """A combination of the varied flags, besides those of the sharding strategy.

    Attributes:
        words: the flags.
        micro_batch: samples per micro-batch; None if the user fixed it.
        recompute: its recomputation, a key of RECOMPUTE, or "as given".
    """

    words: list[str]
    micro_batch: int | None
    recompute: str


class EstimatedLayout(NamedTuple):
    """A layout with its estimate.

    Attributes:
        plan: its time, memory, and cost.
        micro_batch: samples per micro-batch.
        recompute: its recomputation, as in Layout.
        strategy: what its data-parallel ranks shard.
        flags: the trainer's flags that run it.
    """

    plan: RunPlan
    micro_batch: int
    recompute: str
    strategy: Strategy
    flags: list[str]

    @property
    def gib(self) -> float:
        """Return the memory of the fullest rank, in GiB."""
        return max(memory.total for memory in self.plan.memory) / 2**30


class Candidate(NamedTuple):
    """A strategy of a layout that is estimated only if its bounds are better than what was found.
    """

    bounds: Bounds
    layout: Layout
    strategy: Strategy


class Search:
    """Estimates layouts, the less promising strategies last.

    Attributes:
        searched: the strategies that the flags leave open.
        found: the estimates so far.
        skipped: how many layouts were not estimated, since others are faster and smaller, or since
            they cannot fit.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        """Read the flags. Raises LabError if they name a strategy that does not exist."""
        self.searched = Searched(flags)
        self.found: list[EstimatedLayout] = []
        self.skipped = 0
        self._measured: dict = {}
        self._first_error: EstimateError | None = None

    def __iter__(self) -> Iterator[EstimatedLayout]:
        """Yield each estimate; LabError with the trainer's reason if it accepts no layout."""
        candidates: list[Candidate] = []
        for layout in layouts(self.searched.common):
            yield from self._begin(layout, candidates)
        for one in sorted(candidates, key=lambda one: one.bounds.seconds):
            if self._is_worth(one.bounds):
                yield from self._new(layout=one.layout, strategy=one.strategy)
            else:
                self.skipped += 1
        if not self.found:
            raise LabError(f"estimate: {self._first_error or 'no layout is left to try'}")

    def _begin(self, layout: Layout, candidates: list[Candidate]) -> Iterator[EstimatedLayout]:
        """Estimate one strategy of a layout, and add the others to the candidates."""
        try:
            config = read_flags([*self.searched.common, *layout.words])
            keep_on_nodes(config)
        except EstimateError as error:
            if self._first_error is None:
                self._first_error = error
                self._refuse_words(error)
            return
        strategies = self.searched.of(config)
        known: EstimateResult | None = None
        for strategy in sorted(strategies, key=lambda one: (one.stage != 1, one)):
            if known is not None:
                candidates.append(Candidate(bounds(known, strategy), layout, strategy))
                continue
            for made in self._new(layout, strategy):
                known = self._last if strategy.stage < 2 else None
                yield made

    def _refuse_words(self, error: EstimateError) -> None:
        """Raise LabError if no layout can do anything about an error: a word is misspelled."""
        from minimegatron.arguments.parse import parse_unchecked
        from minimegatron.arguments.table import EstimateConfig
        from minimegatron.errors import UserError

        try:
            parse_unchecked(["--estimate", *self.searched.common], config=EstimateConfig)
        except UserError:
            raise LabError(f"estimate: {error}") from None

    def _new(self, layout: Layout, strategy: Strategy) -> Iterator[EstimatedLayout]:
        """Yield the estimate of a layout, unless the trainer does not accept it."""
        from layout_estimator.requests import estimate

        flags = [*self.searched.common, *layout.words, *self.searched.flags(strategy)]
        try:
            self._last = result = estimate(read_flags(flags), self._measured)
        except EstimateError as error:
            self._first_error = self._first_error or error
            return
        self.found.append(EstimatedLayout(
            result.plan, layout.micro_batch or result.config.micro_batch_size, layout.recompute,
            strategy, training_flags(flags)))
        yield self.found[-1]

    def _is_worth(self, least: Bounds) -> bool:
        """Return whether a layout within these bounds might be on the Pareto front."""
        return least.fits and not any(
            one.plan.fits and one.plan.seconds_per_iteration <= least.seconds
            and one.gib <= least.gib for one in self.found)


def training_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags without those that only `--estimate` has."""
    from minimegatron.arguments.flag import table_of
    from minimegatron.arguments.table import EstimateConfig, Planning

    planning = [table_of(EstimateConfig)[each.name] for each in fields(Planning)]
    names = {flag.spelling for flag in planning}
    with_value = {flag.spelling for flag in planning if not isinstance(flag.default, bool)}
    return [flag for at, flag in enumerate(flags)
            if flag not in names and (at == 0 or flags[at - 1] not in with_value)]


def keep_on_nodes(config: EstimateConfig) -> None:
    """Raise EstimateError if a tensor-parallel group would not fit in one node."""
    from virtualgpu.net.cluster_spec import parse_nodes

    size, name = config.tensor_model_parallel_size, "--tensor-model-parallel-size"
    if config.cluster is None and size > config.gpus_per_node:
        raise EstimateError(f"{name} {size}: a tensor-parallel group stays on one node, and "
                            f"nodes have --gpus-per-node {config.gpus_per_node}; nearest: "
                            f"{name} {config.gpus_per_node}")
    for group in parse_nodes(config.cluster) if config.cluster else ():
        if group.per_node % size:
            raise EstimateError(f"{name} {size}: a tensor-parallel group stays on one node, and "
                                f"{group} in --cluster has {group.per_node} GPU(s) per node; "
                                f"nearest: {name} {gcd(size, group.per_node)}")


def layouts(flags: Sequence[str]) -> Iterator[Layout]:
    """Yield each combination of the varied flags.

    Raises:
        EstimateError: --cluster describes no cluster.
    """
    given = dict(pairwise(with_cluster(flags))).get("--world-size", "1")
    # The trainer's parser reports any other value.
    world = int(given) if given.isdecimal() and int(given) else 1
    divisors = [size for size in range(1, world + 1) if world % size == 0]

    from cluster_planner.profiles import MICRO_BATCHES, RECOMPUTE  # loads the GPU models

    def values(name: str, candidates: Sequence[int]) -> list[tuple[list[str], int | None]]:
        return ([([], None)] if name in flags
                else [([name, str(value)], value) for value in candidates])

    recompute = ({"as given": []} if any(flag.startswith(("--recompute", "--activations"))
                                         for flag in flags) else RECOMPUTE)
    for tensor, _ in values("--tensor-model-parallel-size", divisors):
        for pipeline, _ in values("--pipeline-model-parallel-size", divisors):
            for micro, size in values("--micro-batch-size", MICRO_BATCHES):
                for name, words in recompute.items():
                    yield Layout([*tensor, *pipeline, *micro, *words], size, name)


def pareto(choices: Sequence[EstimatedLayout]) -> list[EstimatedLayout]:
    """Return the Pareto front of the layouts that fit, in time and memory.

    Args:
        choices: layouts, the fastest first.
    """
    best: list[EstimatedLayout] = []
    for choice in choices:
        if choice.plan.fits and (not best or choice.gib < best[-1].gib):
            best.append(choice)
    return best
