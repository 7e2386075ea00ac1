"""Measure one pipeline stage on a virtual GPU.

The trainer's own code runs the stage's passes and the end of a step once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from layout_estimator.representative import CollectiveRecord, RepresentativeContext
from layout_estimator.stage_cost import ChunkCost, PassCost, StepCollective, StepCost
from minimegatron.arguments import Config
from minimegatron.arguments.checks import stays_in_bf16
from minimegatron.context import MicroBatch
from minimegatron.data.batches import Batches
from minimegatron.model.gpt import Stage
from minimegatron.optim import LearningRate, LossScaler, Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.parallel.p2p import Peers, ScatterGatherPeers, Transfer
from minimegatron.parallel.pipeline import Pipeline
from minimegatron.parallel.stages import TiedEmbedding, as_module, build_chunks, data_parallel
from minimegatron.timers import LEVELS, Timers
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action, Message
from pipeline_schedules.actions import StageAction, sender
from pipeline_schedules.interpreter import Item
from pipeline_schedules.messages import RECEIVE, SEND

MEASURED_LAYERS = 3  # each further layer costs as much as the third
NO_TIMERS = 0  # the timing log level at which passes are not timed
BACKLOG = 64.0  # seconds of queued GPU work, so that the host never keeps the GPU waiting


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the garbage collector off: it could free an earlier model in the middle of a
    measurement, because the hooks of a sharded model and its modules refer to each other."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Meter:
    """Measures work on a virtual GPU."""

    def __init__(self, ctx: RepresentativeContext) -> None:
        self.gpu = ctx.device.gpu

    def run(self, work: Callable[[], object], backlog: float = 0.0) -> PassCost:
        """Run work and return its cost.

        Args:
            work: launches kernels on the virtual GPU.
            backlog: seconds of work that the GPU has to finish first.
        """
        clock, memory = self.gpu.clock, self.gpu.memory
        clock.wait(clock.synchronize() + backlog)
        host, gpu_start, communication = clock.host, clock.host + backlog, self.gpu.exposed
        before = memory.live
        memory.reset_peaks()
        work()
        seconds = clock.ready() - gpu_start
        return PassCost(clock.host - host, seconds, seconds, self.gpu.exposed - communication,
                        memory.live - before, memory.peak - before)


class ArrivedPeers(Peers):
    """Neighboring stages whose messages have always arrived, and that receive instantly."""

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        tensor.contiguous()  # costs a copy if the tensor is not

    def receive(self, message: Message) -> Transfer:
        tensor = torch.empty(self.shape, device=self.device, dtype=self.dtype)
        return Transfer(message, None, tensor)

    def wait(self, transfer: Transfer) -> torch.Tensor:
        return transfer.tensor


class ArrivedParts(ScatterGatherPeers, ArrivedPeers):
    """ArrivedPeers whose tensors arrive as one part per tensor-parallel rank, then all-gathered."""


class ZeroDataset:
    """A data set of unlimited length whose tokens are all 0."""

    def __init__(self, sequence: int) -> None:
        import numpy as np

        self.sample = {"text": np.zeros(sequence + 1, dtype=np.int64)}

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, index: int) -> dict:
        return self.sample


def draw_micro_batch(ctx: RepresentativeContext) -> MicroBatch:
    """Draw a micro-batch as the trainer does."""
    config = ctx.config
    batches = Batches(ctx, ZeroDataset(config.seq_length), eod=-1, name="training")
    return batches.micro_batch(range(config.micro_batch_size), iteration=0, train=True)


@without_collector()
def draw_cost(ctx: RepresentativeContext) -> PassCost:
    """Measure drawing a micro-batch."""
    batches: list[MicroBatch] = []  # which keeps it in memory
    return Meter(ctx).run(lambda: batches.append(draw_micro_batch(ctx)))


@without_collector()
def chunk_cost(ctx: RepresentativeContext, vocab_size: int, chunk: int, split: bool,
               known: dict[tuple, ChunkCost] | None = None) -> ChunkCost:
    """Measure the passes of one model chunk.

    Args:
        ctx: the context of the chunk's stage.
        vocab_size: the padded vocabulary size.
        chunk: the chunk's number on the stage.
        split: whether the schedule computes weight gradients in a pass of their own (W).
        known: costs of a few layers, which chunks of any length share; filled in by this call.
    """
    config = ctx.config
    virtual_stage = chunk * ctx.grid.pp.size + ctx.grid.pp.index
    layers = config.layers_per_chunk[virtual_stage]
    is_last = virtual_stage == len(config.layers_per_chunk) - 1
    start = sum(config.layers_per_chunk[:virtual_stage])
    # Layers that are recomputed in groups, or of which some are offloaded or in bf16, do not all
    # cost the same.
    differ = bool(config.cpu_offloading_num_layers) or (
        0 < layers_in_bf16(config, virtual_stage) < layers) or (
        config.recompute_granularity == "full" and (
            config.recompute_method == "block" or config.recompute_num_layers > 1))

    def measure(count: int) -> ChunkCost:
        stage = Stage(ctx, vocab_size, range(start, start + count), virtual_stage == 0, is_last)
        return _measure_passes(ctx, stage, chunk, split)

    # While one layer is computed, its neighbors' parameters and gradients may be in transit.
    measured = MEASURED_LAYERS + (config.zero_stage > 1)
    if layers <= measured or differ:
        return measure(layers)
    known = {} if known is None else known

    def measure_once(count: int) -> ChunkCost:
        key = count, virtual_stage == 0, is_last, layers_in_bf16(config, virtual_stage) > 0
        if key not in known:
            known[key] = measure(count)
        return known[key]

    fewer, full = measure_once(measured - 1), measure_once(measured)
    return ChunkCost(*(
        {kind: cost.plus(cost.plus(small[kind], -1), layers - measured)
         for kind, cost in large.items()}
        for small, large in ((fewer.passes, full.passes), (fewer.first, full.first))))


def layers_in_bf16(config: Config, virtual_stage: int) -> int:
    """Return how many layers of a model chunk --first-last-layers-bf16 keeps out of FP8."""
    start = sum(config.layers_per_chunk[:virtual_stage])
    return sum(stays_in_bf16(config, start + layer + 1)
               for layer in range(config.layers_per_chunk[virtual_stage]))


def _measure_passes(ctx: RepresentativeContext, stage: Stage, chunk: int, split: bool
                    ) -> ChunkCost:
    """Measure three micro-batches: the step's first, a later one, and one with a host far ahead."""
    meter, ddp = Meter(ctx), data_parallel(ctx, stage)
    ddp.overlap = None
    kinds = (FORWARD, BACKWARD, WEIGHT) if split else (FORWARD, BACKWARD)
    # Only the measured chunk runs, so one stage may stand in for all of them.
    pipeline = stage_pipeline(ctx, [stage] * ctx.config.chunks, ddp, kinds)
    begin_step(ctx, pipeline)
    batch = draw_micro_batch(ctx)

    def run(kind: str, backlog: float) -> PassCost:
        before = gathered_bytes(ddp)
        cost = meter.run(partial(run_action, pipeline, Action(kind, 0, chunk), batch), backlog)
        return replace(cost, gathered=gathered_bytes(ddp) - before)

    def passes(backlog: float = 0.0) -> dict[str, PassCost]:
        return {kind: run(kind, backlog) for kind in kinds}

    if gathers_fp8(ctx):  # the end of the last step has rounded the weights
        passes()
        ddp.zero_grad()
    first, later = passes(), passes()
    # With the timers of 2021 the host waits after every pass, so it is never ahead.
    saturated = later if runs_timers(ctx.config) else passes(BACKLOG)
    return ChunkCost(
        {kind: replace(later[kind], busy=saturated[kind].busy) for kind in kinds},
        {kind: replace(first[kind], busy=saturated[kind].busy - later[kind].latency
                       + first[kind].latency) for kind in kinds})


def gathered_bytes(ddp: DistributedDataParallel) -> int:
    """Return the bytes of sharded parameters that are complete on this rank now."""
    return sum(ddp.full[unit].nbytes for unit in getattr(ddp, "gathered", ()))


def stage_pipeline(ctx: RepresentativeContext, chunks: Sequence[Stage],
                   ddp: DistributedDataParallel, kinds: Sequence[str] = ()) -> Pipeline:
    """Return the trainer's pipeline, with peers whose messages have always arrived."""
    program = [[Action(kind, 0) for kind in kinds]] * ctx.grid.pp.size
    peers = ArrivedParts if ctx.config.scatter_gather_tensors_in_pipeline else ArrivedPeers
    return Pipeline(ctx, chunks, program, ddp, Timers(ctx.device.now, NO_TIMERS),
                    peers(ctx, len(chunks)))


def begin_step(ctx: RepresentativeContext, pipeline: Pipeline) -> None:
    """Begin a step of a pipeline; its loss counts as that of a single token."""
    scaler = LossScaler(ctx) if ctx.config.fp16 else None
    pipeline.begin(1, scaler and scaler.scale)


def run_action(pipeline: Pipeline, action: Action, *batches: MicroBatch) -> None:
    """Run one action, with the messages that it receives and sends.

    Args:
        pipeline: a pipeline on which begin_step was called.
        batches: the step's micro-batches, at least up to the action's own.
    """
    position = pipeline.stage, action, pipeline.stages, len(pipeline.chunks)
    source, target = sender(*position), receiver(*position)
    items: list[Item] = [action]
    if source is not None:
        items = [Message(RECEIVE, source[1], source[0], pipeline.stage), *items]
    if target is not None:
        items = [*items, Message(SEND, action, pipeline.stage, target[0])]
    pipeline.run(items, batches)


def receiver(stage: int, action: Action, stages: int, chunks: int) -> StageAction | None:
    """Return the action on another stage that consumes this one's result, or None.

    The arguments are those of `pipeline_schedules.actions.dependencies`.
    """
    step = {FORWARD: 1, BACKWARD: -1}.get(action.kind)
    virtual = action.chunk * stages + stage + (step or 0)
    if step is None or not 0 <= virtual < stages * chunks or virtual % stages == stage:
        return None
    chunk, other = divmod(virtual, stages)
    return other, Action(action.kind, action.micro_batch, chunk)


@without_collector()
def step_cost(ctx: RepresentativeContext, vocab_size: int) -> StepCost:
    """Measure a step without its passes: drawing a micro-batch, collectives, and the optimizer.

    Args:
        ctx: the context of a stage.
        vocab_size: the padded vocabulary size.
    """
    config, gpu, meter = ctx.config, ctx.device.gpu, Meter(ctx)
    before = gpu.memory.live
    chunks = build_chunks(ctx, vocab_size)
    tied, ddp = TiedEmbedding(ctx, chunks), data_parallel(ctx, as_module(chunks))
    optimizer = Optimizer(ctx, ddp)
    rate, timers = LearningRate(config), Timers(ctx.device.now, config.timing_log_level)
    state_bytes = gpu.memory.live - before
    draw = draw_cost(ctx)
    if ddp.overlap and ctx.grid.replicas.size > 1:
        _backward_twice(ctx, chunks, ddp, draw_micro_batch(ctx))
    else:
        count_as_accumulated(ddp)
    ctx.records.clear()

    def end_of_step() -> None:
        for part in chunks:
            part.end_step()
        with timers("backward-embedding-all-reduce"):
            tied.all_reduce(ddp)
        with timers("backward-params-all-reduce"):
            ddp.finish_grad_sync()
        with timers("optimizer"):
            optimizer.step(rate.value(), timers)

    start = gpu.clock.synchronize()
    cost = meter.run(end_of_step)
    last_end = ctx.records[-1].ended if ctx.records else start
    # The weights that were gathered in FP8, and their transposes, are there until the next end.
    kept = 2 * ddp.fp8.bytes if gathers_fp8(ctx) else 0
    return StepCost(draw, _collectives(ctx.records, start), start + cost.latency - last_end,
                    cost.communication, state_bytes + kept, draw.retained, cost.peak - kept)


def count_as_accumulated(ddp: DistributedDataParallel) -> None:
    """Go on as after a step's passes, without having run them: no gradient has to be zeroed."""
    for accumulator in ddp.accumulators.values():
        accumulator.writes = 1
    for grads in getattr(ddp, "grads", ()):  # of sharded gradients
        grads.is_summed = True


def _collectives(records: Sequence[CollectiveRecord], start: float) -> tuple[StepCollective, ...]:
    """Return the collectives at the end of a step.

    Args:
        records: recorded collectives, in order.
        start: the time, in seconds, at which the passes end.
    """
    now, collectives = start, []
    for record in records:
        in_passes = record.ready < start
        collectives.append(StepCollective(
            record.waited - now, record.seconds, record.group,
            (start if in_passes else record.waited) - record.ready, in_passes))
        now = record.ended
    return tuple(collectives)


def gathers_fp8(ctx: RepresentativeContext) -> bool:
    """Return whether replicas gather the weights in FP8 at the end of a step."""
    return ctx.config.fp8_param_gather and ctx.grid.replicas.size > 1


def _backward_twice(ctx: RepresentativeContext, chunks: list[Stage], ddp: DistributedDataParallel,
                    batch: MicroBatch) -> None:
    """Run two steps of one micro-batch; overlap needs the first to learn when buckets fill."""
    pipeline = stage_pipeline(ctx, chunks, ddp)
    begin_step(ctx, pipeline)
    numbers = range(len(chunks))
    actions = [*(Action(FORWARD, 0, chunk) for chunk in numbers),
               *(Action(BACKWARD, 0, chunk) for chunk in reversed(numbers))]
    for step in range(2):
        ddp.zero_grad()
        for action in actions:
            run_action(pipeline, action, batch)
        if step == 0:
            ddp.finish_grad_sync()


def runs_timers(config: Config) -> bool:
    """Return True if every pass is timed, which makes the host wait for the GPU."""
    return config.timing_log_level is None or (
        config.timing_log_level >= LEVELS["forward-compute"])
