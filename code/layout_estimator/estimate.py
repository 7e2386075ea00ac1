"""Estimate a run on a cluster that does not exist: one process stands for the whole grid.

All ranks of a pipeline stage do the same at the same time, so one represents them. Each stage is
built as the trainer builds it, on a virtual GPU, with groups whose other ranks are modeled. The
passes of one micro-batch and the end of a step run once (measurement.py), and the interpreter of
schedules combines them as the ranks' clocks would (step_time.py, memory.py). Stages with the same
layers and links are measured only once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import NamedTuple

from layout_estimator.cluster import ModeledCluster, modeled_cluster
from layout_estimator.fragmentation import unallocated_bytes
from layout_estimator.measurement import (
    chunk_cost,
    draw_cost,
    layers_in_bf16,
    runs_timers,
    step_cost,
)
from layout_estimator.memory import PeakMemory, communicator_bytes, message_bytes
from layout_estimator.representative import RepresentativeContext, representative_context
from layout_estimator.stage_cost import StageCost, StepCost
from layout_estimator.step_time import StepClock
from minimegatron.arguments import Config
from minimegatron.arguments.flag import PASSES, names_affecting
from minimegatron.arguments.sharding import Sharding
from minimegatron.arguments.table import Recompute
from minimegatron.errors import UserError
from minimegatron.grid import Group
from minimegatron.parallel.sharding import split_replicas
from pipeline_schedules import (
    BACKWARD,
    BUILT_IN,
    FORWARD,
    WEIGHT,
    Program,
    Schedule,
    ScheduleError,
    add_communication,
    check,
    load,
    replay,
    splits_backward,
)
from virtualgpu.core.card import Card
from virtualgpu.net import network
from virtualgpu.net.network import Link

UNLIMITED_MEMORY = 1 << 60  # bytes of the GPU on which stages are measured
# Flags of the passes on which the end of a step does not depend.
MICRO_BATCH = ("micro_batch_size", *(each.name for each in fields(Recompute)))
# Flags of the end of a step on which the passes do not depend, unless these move shards.
REPLICAS = ("data_parallel_size", "num_distributed_optimizer_instances", "clip_grad",
            "ddp_bucket_size")
SHARDING = tuple(each.name for each in fields(Sharding))


class StageRanks(NamedTuple):
    """The ranks of one stage that have one GPU model."""

    stage: int
    card: Card


@dataclass(frozen=True)
class Estimate:
    """Estimated time and memory of one iteration.

    A tuple has one value for each item of `ranks`: one per stage, or several for a stage whose
    ranks have several GPU models.

    Attributes:
        seconds: the iteration's duration.
        forward: seconds of each stage's forward pass of one micro-batch.
        backward: seconds of each stage's backward pass of one micro-batch.
        passes_peak: bytes that PyTorch has allocated at the peak of the passes, on one rank.
        end_peak: bytes that it has allocated at the peak of the optimizer step, on one rank.
        outside: bytes of the CUDA context and of NCCL on one rank, outside PyTorch's allocator.
        fits: whether the GPU's memory holds the higher peak and `outside`.
        communication: the share of time in which a GPU waits for collectives, over all stages.
        bubble: the share of time in which a GPU waits for other stages, or for slower replicas of
            its own stage, over all stages.
        ranks: the stages, with their GPU models.
        least_seconds: a lower bound of `seconds` for all sharding strategies that share the
            layout; 0 if it is not known.
    """

    seconds: float
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    passes_peak: tuple[int, ...]
    end_peak: tuple[int, ...]
    outside: tuple[int, ...]
    fits: bool
    communication: float
    bubble: float
    ranks: tuple[StageRanks, ...]
    least_seconds: float = 0.0

    @property
    def peak(self) -> tuple[int, ...]:
        """Bytes allocated at the peak on a rank of each stage."""
        return tuple(map(max, self.passes_peak, self.end_peak))


@dataclass
class Estimator:
    """Estimates for one GPU model and one kind of cluster; reuses what it measured.

    Attributes:
        card: the GPU model.
        link: the network between nodes, as for --virtual-network; None for the one that nodes
            with these GPUs have.
        per_node: GPUs per node.
    """

    card: Card
    link: str | None = None
    per_node: int = 8
    _chunks: dict = field(default_factory=dict)
    _layers: dict = field(default_factory=dict)
    _steps: dict = field(default_factory=dict)
    _ends: dict = field(default_factory=dict)
    _draws: dict = field(default_factory=dict)

    def estimate(self, config: Config, vocab_size: int) -> Estimate:
        """Return the estimate of a run.

        Args:
            config: the run's flags, as parse_arguments returns them for the whole world.
            vocab_size: the padded vocabulary size.

        Raises:
            UserError: the schedule does not fit the layout.
            VirtualGpuError: too much of the time would be a guess.
        """
        schedule, program = load_program(config)
        split, timed = splits_backward(schedule), []
        with self._cluster(config) as cluster:
            for replica in unlike_replicas(config, cluster):
                stages = [representative_context(config, cluster, stage, replica)
                          for stage in range(config.pipeline_model_parallel_size)]
                costs = [self.measure(ctx, vocab_size, split) for ctx in stages]
                clock = StepClock(costs, config.num_micro_batches,
                                  send_times(config, cluster, replica), runs_timers(config))
                replay(program, clock)
                timed.append((clock.finish(), clock, costs))
            outside = tuple(self.card.context + communicator_bytes(ctx) for ctx in stages)
            workspaces = cluster.workspace_bytes(config.fp8_format is not None)
            cluster.device.closing()
        # At the end of a step, all replicas wait for the slowest.
        seconds, clock, costs = max(timed, key=lambda each: each[0])
        memory = PeakMemory(costs, config, [workspaces] * len(costs))
        replay(program, memory)
        return self._summary(config, costs, seconds, clock, memory, outside)

    def activation_bytes(self, config: Config, vocab_size: int) -> float:
        """Return the bytes that the first model chunk saves for the backward of a micro-batch.

        Args:
            config: the run's flags.
            vocab_size: the padded vocabulary size.
        """
        with self._cluster(config) as cluster:
            ctx = representative_context(config, cluster, stage=0)
            return chunk_cost(ctx, vocab_size, 0, False).passes[FORWARD].retained

    def unallocated_bytes(self, config: Config, vocab_size: int, stage: int) -> int:
        """Return the bytes that PyTorch reserves beyond the peak of what it has allocated, on a
        rank of a stage whose GPU has room for them.

        Args:
            config: the run's flags.
            vocab_size: the padded vocabulary size.
            stage: the pipeline stage.
        """
        split = splits_backward(load_program(config)[0])
        with self._cluster(config, fragments=True) as cluster:
            return unallocated_bytes(representative_context(config, cluster, stage), vocab_size,
                                     split)

    def _cluster(self, config: Config, fragments: bool = False
                 ) -> AbstractContextManager[ModeledCluster]:
        card = replace(self.card, memory=UNLIMITED_MEMORY)
        return modeled_cluster(card, self.link, config.world_size, self.per_node, fragments)

    def gpus(self, world_size: int) -> dict[Card, int]:
        """Return the number of GPUs of each model among `world_size`."""
        return {self.card: world_size}

    def nodes(self, world_size: int) -> int:
        """Return the number of nodes of `world_size` GPUs."""
        return -(-world_size // self.per_node)

    @property
    def network(self) -> Link:
        """The link between nodes."""
        return network.parse(self.link or self.card.network)

    def measure(self, ctx: RepresentativeContext, vocab_size: int, split: bool) -> StageCost:
        """Return the cost of the context's stage; equal chunks and stages are measured only once.

        Args:
            ctx: the context of a rank with this estimator's GPU model.
            vocab_size: the padded vocabulary size.
            split: whether the schedule computes weight gradients in a pass of their own (W).
        """
        config, grid = ctx.config, ctx.grid
        stages, stage = grid.pp.size, grid.pp.index
        last = len(config.layers_per_chunk) - 1
        stage_chunks = tuple((config.layers_per_chunk[virtual], virtual == 0, virtual == last,
                              layers_in_bf16(config, virtual))
                             for virtual in range(stage, last + 1, stages))
        # A pass receives messages only where there are several stages.
        key = vocab_size, split, _path(grid.tp), stages > 1, passes_key(ctx)
        known, chunks = self._layers.setdefault(key, {}), []
        for number, chunk in enumerate(stage_chunks):
            if (*key, chunk) not in self._chunks:
                self._chunks[*key, chunk] = chunk_cost(ctx, vocab_size, number, split, known)
            chunks.append(self._chunks[*key, chunk])
        return StageCost(tuple(chunks), self._step(ctx, vocab_size, key, stage_chunks),
                         self.card.efficiency)

    def _step(self, ctx: RepresentativeContext, vocab_size: int, key: tuple, stage_chunks: tuple
              ) -> StepCost:
        """Return the cost of a stage's step; all micro-batch sizes share the end of a step.

        Args:
            vocab_size: the padded vocabulary size.
            key: whatever the passes depend on.
        """
        config, grid = ctx.config, ctx.grid
        # Where reductions overlap with the last backward pass, they depend on its duration.
        overlaps = config.overlap_grad_reduce and grid.replicas.size > 1 and (
            config.zero_stage < 2 or config.num_distributed_optimizer_instances > 1)
        flags = flag_values(config, () if overlaps else MICRO_BATCH)
        end = (flags, vocab_size, stage_chunks, *map(_path, (grid.tp, grid.replicas, grid.model)),
               grid.path_of_ends, *shard_paths(ctx))
        if (*key, end) not in self._steps:
            if end not in self._ends:
                self._ends[end] = step_cost(ctx, vocab_size)
            if key not in self._draws:
                self._draws[key] = draw_cost(ctx)
            draw = self._draws[key]
            self._steps[*key, end] = replace(self._ends[end], draw=draw, batch_bytes=draw.retained)
        return self._steps[*key, end]

    def _summary(self, config: Config, costs: Sequence[StageCost], seconds: float,
                 clock: StepClock, memory: PeakMemory, outside: tuple[int, ...]) -> Estimate:
        passes_peak, end_peak = memory.peaks()
        needed = map(sum, zip(map(max, passes_peak, end_peak), outside, strict=True))
        least = least_seconds(costs, clock, config.num_micro_batches)
        stages = len(costs)
        communication = sum(cost.communication(config.num_micro_batches) for cost in costs)
        return Estimate(
            seconds, tuple(cost.seconds(FORWARD) for cost in costs),
            tuple(cost.seconds(BACKWARD, WEIGHT) for cost in costs), passes_peak, end_peak,
            outside, max(needed) <= self.card.memory,
            communication / stages / seconds, sum(clock.waited) / stages / seconds,
            tuple(StageRanks(stage, self.card) for stage in range(stages)), least)


def least_seconds(costs: Sequence[StageCost], clock: StepClock, micro_batches: int) -> float:
    """Return a lower bound of the step time of any sharding strategy in the same layout.

    These are the passes alone, without collectives and the optimizer at the end of the step. A
    strategy that shards gradients never adds to those of an earlier micro-batch, so every pass may
    be as fast as the step's first one. No path through the passes has more than m + 2p of them.

    Args:
        costs: of the stages, with gradients that are not sharded.
        clock: after the passes.
        micro_batches: m.
    """
    saved = max(sum(max(0.0, cost.busy - chunk.first[kind].busy,
                        cost.latency - chunk.first[kind].latency)
                    for chunk in stage.chunks for kind, cost in chunk.passes.items())
                for stage in costs)
    passes = max(clock.ends()) - max(stage.step.after for stage in costs)
    return max(0.0, passes - (micro_batches + 2 * len(costs)) * saved)


def load_program(config: Config) -> tuple[Schedule, Program]:
    """Return the schedule of the flags, and its program with communication.

    Raises UserError if the schedule does not fit the layout.
    """
    make = _known_program if config.schedule in BUILT_IN else _known_program.__wrapped__
    return make(config.schedule, config.pipeline_model_parallel_size, config.num_micro_batches,
                config.chunks)


@lru_cache(maxsize=4)  # layouts that differ in recomputation or sharding have the same one
def _known_program(name: str, stages: int, micro_batches: int, chunks: int
                   ) -> tuple[Schedule, Program]:
    try:
        schedule = load(name, stages, micro_batches, chunks)
        check(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks, v_shaped=False,
              source=f"--schedule {name}")
    except ScheduleError as error:
        raise UserError(str(error)) from error
    return schedule, add_communication(schedule, is_checked=True)


def _path(group: Group) -> object:
    """Return the path of a group's collectives; on equal paths they take equal time."""
    return None if group.process_group is None else group.process_group.path


def flag_values(config: Config, without: Collection[str] = ()) -> tuple:
    """Return the values of the flags that affect a pass or a step, without those named."""
    return tuple(getattr(config, name) for name in names_affecting(PASSES, type(config))
                 if name not in without)


def passes_key(ctx: RepresentativeContext) -> tuple:
    """Return what the time and memory of the passes depend on; equal passes have equal keys.

    ZeRO stages 0 and 1 have the same passes on any number of replicas.
    """
    config = ctx.config
    if config.fp8_param_gather:
        return flag_values(config)
    if config.zero_stage < 2:
        return flag_values(config, (*REPLICAS, *SHARDING))
    return flag_values(config, REPLICAS), config.sharding_size, *shard_paths(ctx)


def shard_paths(ctx: RepresentativeContext) -> tuple:
    """Return the paths of the collectives within and across the instances of hybrid sharding."""
    return tuple(map(_path, split_replicas(
        ctx.grid, ctx.config.num_distributed_optimizer_instances)))


def send_times(config: Config, cluster: ModeledCluster, replica: int = 0
               ) -> list[dict[int, float]]:
    """Return how long sends take: per stage of a replica, {receiving stage: seconds}."""
    stages, tensor = config.pipeline_model_parallel_size, config.tensor_model_parallel_size
    ranks = [(stage * config.data_parallel_size + replica) * tensor for stage in range(stages)]
    size = message_bytes(config)
    return [{other: cluster.send_seconds(ranks[stage], ranks[other], size, tensor)
             for other in {(stage + 1) % stages, (stage - 1) % stages} - {stage}}
            for stage in range(stages)]


def unlike_replicas(config: Config, cluster: ModeledCluster) -> list[int]:
    """Return one data-parallel replica for each different set of links between its ranks.

    Only those that begin on the first node are compared; the other nodes are the same.
    """
    tensor, replicas = config.tensor_model_parallel_size, config.data_parallel_size
    if cluster.links_are_equal:
        return [0]
    seen: list[tuple] = []
    found: list[int] = []
    for replica in range(len(cluster.alike(0, tensor * replicas)[::tensor])):
        starts = range(replica * tensor, config.world_size, tensor * replicas)
        links = (send_times(config, cluster, replica), [
            cluster.topology.path(range(start, start + tensor)) for start in starts])
        if links not in seen:
            seen.append(links)
            found.append(replica)
    return found
