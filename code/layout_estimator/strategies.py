"""Sharding strategies of data parallelism that `lab estimate` searches, and what bounds them.

A strategy says what the data-parallel ranks shard, and over how many of them. All strategies of a
layout run the same kernels in their passes, and the more they shard, the more they communicate. So
the estimate of one of them bounds the time and the memory of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from labcore.errors import LabError
from minimegatron.arguments.sharding import SHARDING_STRATEGIES

if TYPE_CHECKING:
    from layout_estimator.requests import EstimateResult
    from minimegatron.arguments.table import EstimateConfig

CHOICE, ZERO_1 = "--data-parallel-sharding-strategy", "--use-distributed-optimizer"
FSDP, INSTANCES = "--use-megatron-fsdp", "--num-distributed-optimizer-instances"
# Flags that the trainer accepts only with these ZeRO stages.
ONLY_WITH = {"--overlap-param-gather": (1, 2, 3), "--fp8-param-gather": (1,),
             "--torch-fsdp2-no-reshard-after-forward": (3,)}


class Strategy(NamedTuple):
    """What is sharded, and where.

    Attributes:
        name: one of SHARDING_STRATEGIES.
        instances: groups of data-parallel ranks that each shard on their own (hybrid sharding).
    """

    name: str
    instances: int = 1

    @property
    def stage(self) -> int:
        """Return ZeRO's stage."""
        return SHARDING_STRATEGIES.index(self.name)

    def __str__(self) -> str:
        return self.name + (f" / {self.instances}" if self.instances > 1 else "")


class Searched:
    """The strategies that a command line leaves to the search.

    Attributes:
        common: the flags that do not choose a strategy.
        name: the strategy that the flags fix, or None.
        instances: the number of instances that they fix, or None.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        """Read the flags. Raises LabError if they name a strategy that does not exist."""
        given = dict(pairwise([*flags, ""]))
        self.name: str | None = given.get(CHOICE)
        if self.name is not None and self.name not in SHARDING_STRATEGIES:
            from virtualgpu.core.cards import nearest

            raise LabError(f"{CHOICE} {self.name}: no such strategy; nearest: {CHOICE} "
                           f"{nearest(self.name, SHARDING_STRATEGIES)[0]}")
        if self.name is None and ZERO_1 in flags:
            self.name = "optim"
        self.instances: str | None = given.get(INSTANCES)
        self._only = {name: stages for name, stages in ONLY_WITH.items() if name in flags}
        values = {at + 1 for at, flag in enumerate(flags) if flag in (CHOICE, INSTANCES)}
        dropped = (CHOICE, INSTANCES, ZERO_1, FSDP, *ONLY_WITH)
        self.common = [flag for at, flag in enumerate(flags)
                       if flag not in dropped and at not in values]

    def flags(self, strategy: Strategy) -> list[str]:
        """Return the trainer's flags of a strategy; those that a user fixed are kept as given."""
        is_fixed = self.name is not None
        words = {0: [FSDP, CHOICE, "no_shard"] if is_fixed else [], 1: [ZERO_1]}.get(
            strategy.stage, [FSDP, CHOICE, strategy.name])
        instances = self.instances or (strategy.instances > 1 and str(strategy.instances))
        return [*words, *([INSTANCES, instances] if instances else []),
                *(name for name, stages in self._only.items()
                  if is_fixed or strategy.stage in stages)]

    def of(self, config: EstimateConfig) -> list[Strategy]:
        """Return the strategies of a layout, those that shard the least first.

        Args:
            config: the layout, without sharding.
        """
        if self.name is not None:
            names: Sequence[str] = (self.name,)
        elif config.data_parallel_size == 1:  # all strategies are the same
            names = SHARDING_STRATEGIES[:1]
        else:
            names = SHARDING_STRATEGIES[self.instances is not None:2 if is_mixed(config) else 4]
        instances = [1] if self.instances else [1, *hybrid_instances(config)]
        return [Strategy(name, count) for name in names
                for count in (instances if name != "no_shard" else [1])]


def is_mixed(config: EstimateConfig) -> bool:
    """Return whether the cluster has unlike nodes, where gradients and parameters that are sharded
    cannot be estimated."""
    from virtualgpu.net.cluster_spec import parse_nodes

    return config.cluster is not None and len(parse_nodes(config.cluster)) > 1


def hybrid_instances(config: EstimateConfig) -> list[int]:
    """Return the numbers of instances of hybrid sharding that each stay within a node: one or none.
    """
    from virtualgpu.net.cluster_spec import parse_nodes

    if is_mixed(config):
        return []
    per_node = parse_nodes(config.cluster)[0].per_node if config.cluster else config.gpus_per_node
    together = per_node // config.tensor_model_parallel_size  # replicas of a stage on a node
    count, rest = divmod(config.data_parallel_size, max(together, 1))
    return [count] if together > 1 and count > 1 and not rest else []


class Bounds(NamedTuple):
    """The least time and memory that a strategy may need in a layout.

    Attributes:
        seconds: of an iteration.
        gib: memory of the fullest rank, in GiB.
        fits: whether every rank might fit.
    """

    seconds: float
    gib: float
    fits: bool


def bounds(known: EstimateResult, strategy: Strategy) -> Bounds:
    """Return bounds of a strategy from the estimate of another one in the same layout.

    Sharding changes what the states need, and adds to the memory of the passes.

    Args:
        known: the estimate, with gradients and parameters that are not sharded.
    """
    from minimegatron.formulas import state_bytes

    config = known.config
    precision = "bf16" if config.accumulate_allreduce_grads_in_fp32 else config.precision
    had = state_bytes(precision, config.sharding_size, config.zero_stage,
                      config.offloaded_fraction)
    has = state_bytes(precision, config.data_parallel_size // strategy.instances, strategy.stage,
                      config.offloaded_fraction)
    totals = [rank.outside + rank.activations + rank.weights / had.weights * has.resident
              for rank in known.plan.memory]
    return Bounds(known.estimate.least_seconds, max(totals) / 2**30, all(
        total <= rank.capacity for total, rank in zip(totals, known.plan.memory, strict=True)))
