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

from layout_estimator.cluster import ModeledCluster, modeled_gpu
from layout_estimator.estimate import (
    UNLIMITED_MEMORY,
    Estimate,
    Estimator,
    StageRanks,
    load_schedule,
    send_times,
)
from layout_estimator.measurement import runs_timers
from layout_estimator.memory import PeakMemory, communicator_bytes
from layout_estimator.replicas import Cell, Replica, time_step
from layout_estimator.representative import representative_context
from layout_estimator.stage_cost import StageCost
from minimegatron.arguments import Config
from minimegatron.errors import UserError
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, add_communication, replay, splits_backward
from virtualgpu.core.card import Card
from virtualgpu.net import network
from virtualgpu.net.cluster_spec import NodeGroup
from virtualgpu.net.network import Link
from virtualgpu.net.topology import Topology


class RankCost(NamedTuple):
    """Cost of the first rank of one stage of one replica.

    Attributes:
        card: its GPU model.
        stage: the stage's cost.
        taken: bytes of the CUDA context and of NCCL.
        workspaces: bytes of cuBLAS's workspaces.
        sends: {receiving stage: seconds of a message}.
    """

    card: Card
    stage: StageCost
    taken: int
    workspaces: int
    sends: dict[int, float]

    @property
    def key(self) -> tuple:
        """What makes two ranks alike; estimators measure equal stages only once."""
        return (self.card, *map(id, self.stage.chunks), id(self.stage.step), self.taken,
                *sorted(self.sends.items()))


@dataclass
class MixedEstimator:
    """Estimates for one cluster of several kinds of nodes; reuses what it measured.

    Attributes:
        groups: of equal nodes, in the order of the ranks.
        link: between nodes, as for --virtual-network; None for the slowest that a kind of node
            comes with.
    """

    groups: tuple[NodeGroup, ...]
    link: str | None = None
    _estimators: dict[Card, Estimator] = field(default_factory=dict)

    per_node: ClassVar[None] = None  # nodes differ

    def gpus(self, world_size: int) -> dict[Card, int]:
        """Return the number of GPUs of each model, of which there are `world_size` together."""
        found: Counter[Card] = Counter()
        for group in self.groups:
            found[group.card] += group.gpus
        return found

    def nodes(self, world_size: int) -> int:
        """Return the number of nodes, which have `world_size` GPUs."""
        return sum(group.nodes for group in self.groups)

    @property
    def network(self) -> Link:
        """The link between nodes."""
        links = [self.link] if self.link else [group.card.network for group in self.groups]
        return min(map(network.parse, links), key=lambda link: link.effective)

    @property
    def topology(self) -> Topology:
        """The GPUs of all ranks."""
        nodes = [(f"{at}.{node}", group.card) for at, group in enumerate(self.groups)
                 for node in range(group.nodes) for _ in range(group.per_node)]
        names, cards = zip(*nodes, strict=True)
        return Topology(names, cards, self.network)

    def estimate(self, config: Config, vocab_size: int) -> Estimate:
        """Return the estimate of a run on all GPUs of the cluster.

        Args:
            config: its flags, as parse_arguments returns them for the whole world.
            vocab_size: padded.

        Raises:
            UserError: the schedule does not fit the layout, or the ranks of a tensor-parallel group
                have different GPU models.
            VirtualGpuError: too much of the time would be a guess.
        """
        topology, schedule = self.topology, load_schedule(config)
        cells = cells_by_card(config, topology)
        costs: dict[Cell, RankCost] = {}
        for card, mine in cells.items():
            with modeled_gpu(replace(card, memory=UNLIMITED_MEMORY), topology, True) as cluster:
                for cell in mine:
                    costs[cell] = self._measure(config, vocab_size, cluster, card, cell,
                                                splits_backward(schedule))
                cluster.device.closing()
        rows = [[costs[Cell(replica, stage)]
                 for stage in range(config.pipeline_model_parallel_size)]
                for replica in range(config.data_parallel_size)]
        counts = Counter(tuple(cost.key for cost in row) for row in rows)
        alike = {tuple(cost.key for cost in row): row for row in rows}
        kinds = list(alike.values())
        replicas = [Replica(tuple(cost.stage for cost in row), [cost.sends for cost in row],
                            counts[key]) for key, row in alike.items()]
        program = add_communication(schedule)
        time = time_step(replicas, program, config.num_micro_batches, runs_timers(config))
        memory = [PeakMemory(replica.costs, config, [cost.workspaces for cost in row])
                  for replica, row in zip(replicas, kinds, strict=True)]
        for handler in memory:
            replay(program, handler)
        return summary(config, kinds, replicas, time.seconds, time.waited,
                       [handler.peaks() for handler in memory])

    def _measure(self, config: Config, vocab_size: int, cluster: ModeledCluster, card: Card,
                 cell: Cell, split: bool) -> RankCost:
        ctx = representative_context(config, cluster, cell.stage, cell.replica)
        estimator = self._estimators.setdefault(card, Estimator(card))
        return RankCost(card, estimator.measure(ctx, vocab_size, split),
                        card.context + communicator_bytes(ctx), cluster.workspace_bytes,
                        send_times(config, cluster, cell.replica)[cell.stage])


def cells_by_card(config: Config, topology: Topology) -> dict[Card, list[Cell]]:
    """Return the stages of all replicas by their GPU model.

    Raises:
        UserError: the ranks of a tensor-parallel group have different GPU models.
    """
    found: dict[Card, list[Cell]] = {}
    tensor, replicas = config.tensor_model_parallel_size, config.data_parallel_size
    for first in range(0, config.world_size, tensor):
        stage, replica = divmod(first // tensor, replicas)
        cards = list(dict.fromkeys(topology.cards[first:first + tensor]))
        if len(cards) > 1:
            raise UserError(
                f"--tensor-model-parallel-size {tensor}: ranks {first} to {first + tensor - 1} "
                f"have different GPUs ({', '.join(card.name for card in cards)}), and no estimate "
                "splits a layer between them; nearest: a size that divides the GPUs of every node")
        found.setdefault(cards[0], []).append(Cell(replica, stage))
    return found


def summary(config: Config, rows: Sequence[Sequence[RankCost]], replicas: Sequence[Replica],
            seconds: float, waited: Sequence[Sequence[float]],
            peaks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Estimate:
    """Return the estimate: of each stage and GPU model, the slowest and the fullest rank.

    Args:
        config: the run's flags.
        rows: costs of the stages, per replica.
        replicas: the same, with the number of each.
        seconds: of the step.
        waited: seconds that each stage waits, per replica.
        peaks: of the passes and of the step's end, per stage, per replica.
    """
    ranks: dict[StageRanks, list[tuple]] = {}
    for row, (passes, ends) in zip(rows, peaks, strict=True):
        for stage, cost in enumerate(row):
            ranks.setdefault(StageRanks(stage, cost.card), []).append((
                cost.stage.seconds(FORWARD), cost.stage.seconds(BACKWARD, WEIGHT),
                passes[stage], ends[stage], cost.taken))
    order = sorted(ranks, key=lambda one: one.stage)
    worst = [tuple(map(max, zip(*ranks[one], strict=True))) for one in order]
    forward, backward, passes_peak, end_peak, taken = zip(*worst, strict=True)
    fits = all(max(passes, end) + own <= one.card.memory for one, passes, end, own
               in zip(order, passes_peak, end_peak, taken, strict=True))
    everyone = seconds * config.pipeline_model_parallel_size * config.data_parallel_size
    return Estimate(
        seconds, forward, backward, passes_peak, end_peak, taken, fits,
        sum(replica.count * cost.communication(config.num_micro_batches)
            for replica in replicas for cost in replica.costs) / everyone,
        sum(replica.count * sum(mine) for replica, mine in zip(replicas, waited, strict=True))
        / everyone, tuple(order))
