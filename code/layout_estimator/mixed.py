"""Estimates for clusters of several kinds of nodes.

Ranks are placed on the nodes in the cluster's order. Each stage of each replica is measured on its
own GPU model and links (estimate.py), replicas with different costs are simulated side by side
(replicas.py), and memory is compared with each GPU model's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from cluster_planner.placement import slowest_network
from layout_estimator.cluster import ModeledCluster, modeled_gpu
from layout_estimator.estimate import (
    UNLIMITED_MEMORY,
    Estimate,
    Estimator,
    StageRanks,
    load_program,
    send_times,
)
from layout_estimator.measurement import runs_timers
from layout_estimator.memory import PeakMemory, communicator_bytes
from layout_estimator.replicas import Replica, StageReplica, time_step
from layout_estimator.representative import representative_context
from layout_estimator.stage_cost import StageCost
from minimegatron.arguments import Config
from minimegatron.errors import UserError, require
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, replay, splits_backward
from virtualgpu.core.card import Card
from virtualgpu.net import network
from virtualgpu.net.cluster_spec import NodeGroup
from virtualgpu.net.network import Link
from virtualgpu.net.topology import Topology


class RankCost(NamedTuple):
    """Cost of the first rank of a stage in one data-parallel replica.

    Attributes:
        card: its GPU model.
        stage: the stage's cost.
        outside: bytes of the CUDA context and of NCCL, outside PyTorch's allocator.
        workspaces: bytes of cuBLAS's workspaces.
        sends: {receiving stage: seconds of a send}.
    """

    card: Card
    stage: StageCost
    outside: int
    workspaces: int
    sends: dict[int, float]

    @property
    def key(self) -> tuple:
        """Equal for ranks with equal costs; estimators measure equal stages only once."""
        return (self.card, *map(id, self.stage.chunks), id(self.stage.step), self.outside,
                *sorted(self.sends.items()))


@dataclass
class MixedEstimator:
    """Estimates for one cluster of several kinds of nodes; reuses what it measured.

    Attributes:
        groups: groups of equal nodes, in the order of the ranks.
        link: the network between nodes, as for --virtual-network; None for the slowest of those
            that nodes with these GPUs have.
    """

    groups: tuple[NodeGroup, ...]
    link: str | None = None
    _estimators: dict[Card, Estimator] = field(default_factory=dict)

    per_node: ClassVar[None] = None  # nodes differ

    def gpus(self, world_size: int) -> dict[Card, int]:
        """Return the number of GPUs of each model; they add up to `world_size`."""
        counts: Counter[Card] = Counter()
        for group in self.groups:
            counts[group.card] += group.gpus
        return counts

    def nodes(self, world_size: int) -> int:
        """Return the number of nodes; `world_size` is the number of their GPUs."""
        return sum(group.nodes for group in self.groups)

    @property
    def network(self) -> Link:
        """The link between nodes."""
        return network.parse(self.link or slowest_network(self.groups))

    @property
    def topology(self) -> Topology:
        """The GPUs of all ranks."""
        nodes = [(f"{index}.{node}", group.card) for index, group in enumerate(self.groups)
                 for node in range(group.nodes) for _ in range(group.per_node)]
        names, cards = zip(*nodes, strict=True)
        return Topology(names, cards, self.network)

    def estimate(self, config: Config, vocab_size: int) -> Estimate:
        """Return the estimate of a run on all GPUs of the cluster.

        Args:
            config: the run's flags, as parse_arguments returns them for the whole world.
            vocab_size: the padded vocabulary size.

        Raises:
            UserError: the schedule does not fit the layout, or the ranks of a tensor-parallel group
                have different GPU models, or gradients or parameters are sharded.
            VirtualGpuError: too much of the time would be a guess.
        """
        require(not config.shards_by_unit,
                "--data-parallel-sharding-strategy or --overlap-param-gather with a --cluster of "
                "unlike nodes: in every layer fast ranks would wait for slow ones, which is not "
                "modeled; nearest: --use-distributed-optimizer")
        topology, (schedule, program) = self.topology, load_program(config)
        by_card = stages_by_card(config, topology)
        costs: dict[StageReplica, RankCost] = {}
        for card, card_members in by_card.items():
            with modeled_gpu(replace(card, memory=UNLIMITED_MEMORY), topology, True) as cluster:
                for member in card_members:
                    costs[member] = self._measure(config, vocab_size, cluster, card, member,
                                                splits_backward(schedule))
                cluster.device.closing()
        rows = [[costs[StageReplica(replica, stage)]
                 for stage in range(config.pipeline_model_parallel_size)]
                for replica in range(config.data_parallel_size)]
        counts = Counter(tuple(cost.key for cost in row) for row in rows)
        distinct = {tuple(cost.key for cost in row): row for row in rows}
        distinct_rows = list(distinct.values())
        replicas = [Replica(tuple(cost.stage for cost in row), [cost.sends for cost in row],
                            counts[key]) for key, row in distinct.items()]
        time = time_step(replicas, program, config.num_micro_batches, runs_timers(config))
        memory = [PeakMemory(replica.costs, config, [cost.workspaces for cost in row])
                  for replica, row in zip(replicas, distinct_rows, strict=True)]
        for handler in memory:
            replay(program, handler)
        return summary(config, distinct_rows, replicas, time.seconds, time.waited,
                       [handler.peaks() for handler in memory])

    def _measure(self, config: Config, vocab_size: int, cluster: ModeledCluster, card: Card,
                 member: StageReplica, split: bool) -> RankCost:
        ctx = representative_context(config, cluster, member.stage, member.replica)
        estimator = self._estimators.setdefault(card, Estimator(card))
        return RankCost(card, estimator.measure(ctx, vocab_size, split),
                        card.context + communicator_bytes(ctx),
                        cluster.workspace_bytes(config.fp8_format is not None),
                        send_times(config, cluster, member.replica)[member.stage])


def stages_by_card(config: Config, topology: Topology) -> dict[Card, list[StageReplica]]:
    """Return the stages of all replicas, grouped by GPU model.

    Raises:
        UserError: the ranks of a tensor-parallel group have different GPU models.
    """
    by_card: dict[Card, list[StageReplica]] = {}
    tensor, replicas = config.tensor_model_parallel_size, config.data_parallel_size
    for first in range(0, config.world_size, tensor):
        stage, replica = divmod(first // tensor, replicas)
        cards = list(dict.fromkeys(topology.cards[first:first + tensor]))
        if len(cards) > 1:
            raise UserError(
                f"--tensor-model-parallel-size {tensor}: ranks {first} to {first + tensor - 1} "
                f"have different GPUs ({', '.join(card.name for card in cards)}), and a layer "
                "cannot be split between them; nearest: a size that divides the GPUs of every node")
        by_card.setdefault(cards[0], []).append(StageReplica(replica, stage))
    return by_card


def summary(config: Config, rows: Sequence[Sequence[RankCost]], replicas: Sequence[Replica],
            seconds: float, waited: Sequence[Sequence[float]],
            peaks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Estimate:
    """Return the estimate: for each stage and GPU model, the slowest and the fullest rank.

    Args:
        config: the run's flags.
        rows: the stages' costs, one row per distinct replica.
        replicas: the distinct replicas, with the number of each.
        seconds: duration of the step.
        waited: seconds that each stage waits, per replica.
        peaks: bytes at the peak of the passes and of the step's end, per stage, per replica.
    """
    ranks: dict[StageRanks, list[tuple]] = {}
    for row, (passes, ends) in zip(rows, peaks, strict=True):
        for stage, cost in enumerate(row):
            ranks.setdefault(StageRanks(stage, cost.card), []).append((
                cost.stage.seconds(FORWARD), cost.stage.seconds(BACKWARD, WEIGHT),
                passes[stage], ends[stage], cost.outside))
    order = sorted(ranks, key=lambda kind: kind.stage)
    worst = [tuple(map(max, zip(*ranks[kind], strict=True))) for kind in order]
    forward, backward, passes_peak, end_peak, outside = zip(*worst, strict=True)
    fits = all(max(passes, end) + own <= kind.card.memory for kind, passes, end, own
               in zip(order, passes_peak, end_peak, outside, strict=True))
    gpu_seconds = seconds * config.pipeline_model_parallel_size * config.data_parallel_size
    return Estimate(
        seconds, forward, backward, passes_peak, end_peak, outside, fits,
        sum(replica.count * cost.communication(config.num_micro_batches)
            for replica in replicas for cost in replica.costs) / gpu_seconds,
        sum(replica.count * sum(waits) for replica, waits in zip(replicas, waited, strict=True))
        / gpu_seconds, tuple(order))
