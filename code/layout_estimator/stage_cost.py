"""What one pipeline stage's work takes: its passes and the end of its step, run once on a virtual
card by the trainer's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import torch

from layout_estimator.solo import SoloContext
from minimegatron.arguments import Config
from minimegatron.data.batches import Batches
from minimegatron.logging.timers import LEVELS, Timers
from minimegatron.model.gpt import Stage
from minimegatron.optim.learning_rate import LearningRate
from minimegatron.optim.loss_scaler import LossScaler
from minimegatron.optim.optimizer import Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.parallel.p2p import Transfer
from minimegatron.parallel.pipeline import Pipeline
from minimegatron.parallel.stages import TiedEmbedding, as_module, data_parallel
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action
from pipeline_schedules.actions import needs

MEASURED = 3  # layers; more cost more of the same
QUIET = 0  # the timing log level at which no timer of a pass runs
AHEAD = 64.0  # seconds: a card with so much to do that the host never keeps it waiting


@dataclass(frozen=True)
class Pass:
    """What a piece of work does to a rank's clock and memory.

    Seconds. host: of launching. alone: until the card is done, where it was idle. busy: of the
    card, where the host is far ahead. messages: of `busy`, waiting for collectives.
    Bytes. kept: in use after it and not before. most: in use at its peak and not before.
    """

    host: float = 0.0
    alone: float = 0.0
    busy: float = 0.0
    messages: float = 0.0
    kept: float = 0.0
    most: float = 0.0

    def plus(self, other: Pass, times: float = 1) -> Pass:
        return Pass(*(a + times * b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Chunk:
    """The passes of one chunk for one micro-batch. first: that of the step's first micro-batch,
    whose gradients replace what is there; the others' are added."""

    passes: dict[str, Pass]
    first: dict[str, Pass]


class Meter:
    """Measures work on a virtual card."""

    def __init__(self, ctx: SoloContext) -> None:
        self.gpu = ctx.device.gpu

    def _messages(self) -> float:
        return self.gpu.exposed

    def run(self, work: Callable[[], object], ahead: float = 0.0) -> Pass:
        """ahead: seconds of work that the card has to do before it."""
        clock, memory = self.gpu.clock, self.gpu.memory
        clock.wait(clock.synchronize() + ahead)
        host, card, messages = clock.host, clock.host + ahead, self._messages()
        before = memory.live
        memory.reset_peaks()
        work()
        spent = clock.ready() - card
        return Pass(clock.host - host, spent, spent, self._messages() - messages,
                    memory.live - before, memory.peak - before)


class There:
    """A message that has come."""

    def wait(self) -> bool:
        return True


class Samples:
    """A data set of one sample, as often as you like."""

    def __init__(self, sequence: int) -> None:
        import numpy as np

        self.sample = {"text": np.zeros(sequence + 1, dtype=np.int64)}

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, index: int) -> dict:
        return self.sample


def micro_batch(ctx: SoloContext):
    """As the trainer draws it."""
    return Batches(ctx, Samples(ctx.config.seq_length), -1, "training")._micro_batch(
        range(ctx.config.micro_batch_size), 0, True)


def chunk_cost(ctx: SoloContext, vocab_size: int, chunk: int, split: bool) -> Chunk:
    """The passes of one of the chunks of the context's stage. split: weight gradients apart."""
    config = ctx.config
    stages, at = ctx.grid.pp.size, chunk * ctx.grid.pp.size + ctx.grid.pp.index
    layers, last = config.layers_per_chunk[at], at == len(config.layers_per_chunk) - 1
    grouped = config.recompute_granularity == "full" and (
        config.recompute_method == "block" or config.recompute_num_layers > 1)

    def run(count: int) -> Chunk:
        stage = Stage(ctx, vocab_size, range(count), at == 0, last)
        return _run(ctx, stage, Action(FORWARD, 0, chunk), stages, split)

    if layers <= MEASURED or grouped:
        return run(layers)
    less, more = run(MEASURED - 1), run(MEASURED)
    return Chunk(*(
        {kind: cost.plus(cost.plus(small[kind], -1), layers - MEASURED)
         for kind, cost in large.items()}
        for small, large in ((less.passes, more.passes), (less.first, more.first))))


def _run(ctx: SoloContext, stage: Stage, forward: Action, stages: int, split: bool) -> Chunk:
    """Three micro-batches: the step's first one, another one, and one with the host far ahead."""
    chunk, meter = forward.chunk, Meter(ctx)
    ddp = data_parallel(ctx, stage)
    ddp.overlap = False
    kinds = (FORWARD, BACKWARD, WEIGHT) if split else (FORWARD, BACKWARD)
    program = [[Action(kind, 0, chunk) for kind in kinds]] * stages
    # The other chunks are never asked for.
    pipeline = Pipeline(ctx, [stage] * ctx.config.chunks, program, ddp,
                        Timers(ctx.device.now, QUIET))
    scaler = LossScaler(ctx) if ctx.config.fp16 else None
    pipeline.share = (1 if scaler is None else scaler.scale) / ctx.grid.dp.size
    pipeline.total = torch.zeros((), device=ctx.device.torch_device)
    batch, runs = micro_batch(ctx), []
    # With the timers of 2021 the host waits after every pass: how far ahead it could be is no
    # matter.
    for ahead in (0.0, 0.0, 0.0 if runs_timers(ctx.config) else AHEAD):
        if len(runs) == 2 and not ahead:
            runs.append(runs[1])
            break
        passes = {}
        for kind in kinds:
            action = Action(kind, 0, chunk)
            passes[kind] = meter.run(lambda a=action: _do(pipeline, a, batch), ahead)
        runs.append(passes)
    first, alone, busy = runs
    costs = {kind: _with_busy(alone[kind], busy[kind].busy) for kind in kinds}
    return Chunk(costs, {
        kind: _with_busy(first[kind], busy[kind].busy - alone[kind].alone + first[kind].alone)
        for kind in kinds})


def _with_busy(cost: Pass, busy: float) -> Pass:
    return Pass(cost.host, cost.alone, busy, cost.messages, cost.kept, cost.most)


def _do(pipeline: Pipeline, action: Action, batch) -> None:
    """One action of the pipeline, whose messages are there already."""
    for place in needs(pipeline.stage, action, pipeline.stages, len(pipeline.chunks)):
        if place[0] != pipeline.stage:
            tensor = torch.empty(pipeline.peers.shape, device=pipeline.peers.device,
                                 dtype=pipeline.peers.dtype)
            pipeline.inbox[place] = Transfer(None, There(), tensor)
    if action.kind == FORWARD:
        pipeline._forward(action, batch)
    elif action.kind == BACKWARD:
        pipeline._backward(action)
    else:
        pipeline.ddp.compute_weight_grads((action.micro_batch, action.chunk))
    for tensor in pipeline.outbox.values():
        tensor.contiguous()  # as it is sent
    pipeline.outbox.clear()


@dataclass(frozen=True)
class Step:
    """What a step takes besides the passes.

    begin: of one micro-batch's drawing. ends: the pieces of the step's end, each up to a collective
    in which other stages take part: (seconds before it, its own seconds, its group); rest: seconds
    after the last one. messages: seconds of collectives in all that. states: bytes of the model and
    the optimizer; batch: of one micro-batch; most: bytes that the step's end needs more.
    """

    begin: Pass
    ends: tuple[tuple[float, float, str], ...]
    rest: float
    messages: float
    states: int
    batch: float
    most: float


def step_cost(ctx: SoloContext, vocab_size: int) -> Step:
    from minimegatron.parallel.stages import build_chunks

    config, gpu, meter = ctx.config, ctx.device.gpu, Meter(ctx)
    before = gpu.memory.live
    chunks = build_chunks(ctx, vocab_size)
    tied, ddp = TiedEmbedding(ctx, chunks), data_parallel(ctx, as_module(chunks))
    optimizer = Optimizer(ctx, ddp)
    rate, timers = LearningRate(config), Timers(ctx.device.now, config.timing_log_level)
    states = gpu.memory.live - before
    batches = []
    begin = meter.run(lambda: batches.append(micro_batch(ctx)))
    if ddp.overlap and ctx.grid.dp.size > 1:
        _backward_twice(ctx, chunks, ddp, batches[0])
    else:
        for accumulator in ddp.accumulators.values():
            accumulator.writes = 1  # nothing has to be zeroed
    ctx.meetings.clear()

    def end() -> None:
        with timers("backward-embedding-all-reduce"):
            tied.all_reduce()
        with timers("backward-params-all-reduce"):
            ddp.finish_grad_sync()
        with timers("optimizer"):
            optimizer.step(rate.value(), timers)

    start = gpu.clock.synchronize()
    cost = meter.run(end)
    at, ends = start, []
    for meeting in ctx.meetings:
        ends.append((meeting.ready - at, meeting.seconds, meeting.group))
        at = meeting.ready + meeting.seconds
    return Step(begin, tuple(ends), start + cost.alone - at, cost.messages, states,
                begin.kept, cost.most)


def _backward_twice(ctx: SoloContext, chunks: list[Stage], ddp: DistributedDataParallel, batch
                    ) -> None:
    """Two steps of one micro-batch: in the second one gradients leave as soon as they are there."""
    stages = ctx.grid.pp.size
    pipeline = Pipeline(ctx, chunks, [[]] * stages, ddp, Timers(ctx.device.now, QUIET))
    scaler = LossScaler(ctx) if ctx.config.fp16 else None
    pipeline.share = (1 if scaler is None else scaler.scale) / ctx.grid.dp.size
    pipeline.total = torch.zeros((), device=ctx.device.torch_device)
    for number in range(2):
        ddp.zero_grad()
        for chunk in range(len(chunks)):
            _do(pipeline, Action(FORWARD, 0, chunk), batch)
        for chunk in reversed(range(len(chunks))):
            _do(pipeline, Action(BACKWARD, 0, chunk), batch)
        if number == 0:
            ddp.finish_grad_sync()


def runs_timers(config: Config) -> bool:
    """Whether passes are timed one by one, which makes the host wait for the card."""
    return config.timing_log_level is None or (
        config.timing_log_level >= LEVELS["forward-compute"])


@contextmanager
def on(device) -> Iterator[None]:
    """The device counts what happens inside; it was switched on when it was made."""
    try:
        yield
    finally:
        device.gpu.__exit__(None, None, None)
