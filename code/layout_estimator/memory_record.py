"""Record one training step's memory over time: every allocation of the virtual GPU, by category.

The trainer's own code runs two steps of a stage on one virtual GPU. The first one creates the
optimizer's state, and the second one is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from layout_estimator.cluster import modeled_cluster
from layout_estimator.estimate import UNLIMITED_MEMORY
from layout_estimator.measurement import (
    Meter,
    begin_step,
    draw_micro_batch,
    run_action,
    stage_pipeline,
)
from layout_estimator.memory import activation_bytes, communicator_bytes
from layout_estimator.planner import make_estimator, padded_vocabulary
from layout_estimator.representative import RepresentativeContext, representative_context
from layout_estimator.requests import EstimateError, read_flags
from minimegatron.arguments.parse import parse_unchecked
from minimegatron.errors import UserError
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.parallel.stages import build_chunks, data_parallel
from minimegatron.timers import Timers
from pipeline_schedules import BACKWARD, FORWARD, Action
from virtualgpu.core.card import Card
from virtualgpu.export import memory_timeline
from virtualgpu.export.blocks import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.owners import storages

CATEGORIES = (PARAMETERS, OPTIMIZER, GRADIENTS, ACTIVATIONS)


@dataclass(frozen=True)
class MemoryRecord:
    """The memory of one step on one GPU, in bytes, at every allocation and release.

    Attributes:
        seconds: the times, from the beginning of the step.
        categories: for each of CATEGORIES, the bytes from each time on; activations include what
            a pass allocates only temporarily.
        allocated: peak of the bytes that tensors occupy.
        requested: those that the tensors need, at their own peak: without the allocator's rounding.
        reserved: peak of the bytes that PyTorch has taken from CUDA.
        outside: bytes of the CUDA context and of NCCL.
        card: the GPU model.
    """

    seconds: tuple[float, ...]
    categories: dict[str, tuple[int, ...]]
    allocated: int
    requested: int
    reserved: int
    outside: int
    card: Card

    @property
    def totals(self) -> list[int]:
        """Return the allocated bytes from each time on."""
        return [sum(row) for row in zip(*self.categories.values(), strict=True)]

    @property
    def fits(self) -> bool:
        """Whether tensors, the CUDA context, and NCCL fit the GPU."""
        return self.allocated + self.outside <= self.card.memory


@dataclass(frozen=True)
class LayerCost:
    """One layer's forward time, in seconds, the bytes that it saves, and those of its input."""

    forward: float
    saved: int
    input_bytes: int


def record(flags: Sequence[str]) -> MemoryRecord:
    """Record a step of a run without pipeline parallelism, on a GPU that never runs out of memory.

    Args:
        flags: those of `pretrain_gpt.py --estimate`, with a virtual device.

    Raises:
        EstimateError: the trainer does not accept the flags, or they ask for a pipeline.
    """
    with _context(flags) as (ctx, vocab_size, card):
        seconds, categories = _Steps(ctx, vocab_size).record()
        memory = ctx.device.gpu.memory
        return MemoryRecord(seconds, categories, memory.peak, memory.peak_requested,
                            memory.peak_reserved, card.context + communicator_bytes(ctx), card)


def layer(gpu: str, flags: Sequence[str]) -> LayerCost:
    """Return the cost of one transformer layer, the difference of two models' costs.

    Args:
        gpu: the GPU model.
        flags: the trainer's, without --num-layers, --global-batch-size, and
            --max-position-embeddings, which are chosen here.

    Raises:
        EstimateError: the trainer does not accept the flags.
    """
    try:
        given = parse_unchecked(flags)
    except UserError as error:
        raise EstimateError(str(error)) from None
    flags = [*flags, "--max-position-embeddings", str(given.seq_length), "--global-batch-size",
             str(given.micro_batch_size), "--device", f"virtual:{gpu}", "--world-size", "1",
             "--num-layers"]
    (few, few_bytes), (more, more_bytes) = (_forward([*flags, count]) for count in ("2", "3"))
    return LayerCost(more - few, more_bytes - few_bytes,
                     activation_bytes(read_flags([*flags, "2"])))


def _forward(flags: Sequence[str]) -> tuple[float, int]:
    """Return the seconds of a micro-batch's forward pass, and the bytes that it leaves allocated.

    Args:
        flags: as for `record`.
    """
    with _context(flags) as (ctx, vocab_size, _):
        steps, batch = _Steps(ctx, vocab_size), draw_micro_batch(ctx)
        begin_step(ctx, steps.pipeline)
        cost = Meter(ctx).run(lambda: run_action(steps.pipeline, Action(FORWARD, 0), batch))
    return cost.latency, cost.retained


@contextmanager
def _context(flags: Sequence[str]) -> Iterator[tuple[RepresentativeContext, int, Card]]:
    """Create the context of a run's first rank on a GPU that never runs out of memory.

    Yields it with the padded vocabulary size and the GPU model.

    Raises:
        EstimateError: as `record`.
    """
    config = read_flags(flags)
    if config.pipeline_model_parallel_size > 1:
        raise EstimateError(f"--pipeline-model-parallel-size "
                            f"{config.pipeline_model_parallel_size}: memory over time is recorded "
                            "for one stage only; nearest: --pipeline-model-parallel-size 1")
    estimator = make_estimator(config)
    card = replace(estimator.card, memory=UNLIMITED_MEMORY)
    with modeled_cluster(card, estimator.link, config.world_size, estimator.per_node,
                         fragments=True) as cluster:
        yield (representative_context(config, cluster, stage=0), padded_vocabulary(config),
               estimator.card)


class _Steps:
    """The steps of one rank."""

    def __init__(self, ctx: RepresentativeContext, vocab_size: int) -> None:
        self.ctx = ctx
        self.chunks = build_chunks(ctx, vocab_size)
        self.ddp = data_parallel(ctx, self.chunks[0])
        self.ddp.overlap = None
        self.optimizer, self.rate = Optimizer(ctx, self.ddp), LearningRate(ctx.config)
        self.timers = Timers(ctx.device.now, ctx.config.timing_log_level)
        self.pipeline = stage_pipeline(ctx, self.chunks, self.ddp, (FORWARD, BACKWARD))

    def step(self) -> None:
        """Take one step as the trainer does, with the stage's micro-batches one after another."""
        count = self.ctx.config.num_micro_batches
        self.optimizer.zero_grad()
        batches = [draw_micro_batch(self.ctx) for _ in range(count)]
        begin_step(self.ctx, self.pipeline)
        for number in range(count):
            for kind in (FORWARD, BACKWARD):
                run_action(self.pipeline, Action(kind, number), *batches)
        self.chunks[0].end_step()
        self.ddp.finish_grad_sync()
        self.optimizer.step(self.rate.value(), self.timers)

    def record(self) -> tuple[tuple[float, ...], dict[str, tuple[int, ...]]]:
        """Take a step, and then one that is recorded; return its times and bytes by category."""
        self.step()
        gpu = self.ctx.device.gpu
        gpu.clock.synchronize()
        gpu.memory.reset_peaks()
        ledger, begin = Ledger(gpu), gpu.clock.ready()
        ledger.blocks.history = []  # asks for the times of allocations and releases
        ledger.start()
        before = ledger.blocks.count  # allocations that live when the step begins
        self._label(ledger)
        try:
            self.step()
            self._label(ledger)  # the step has made new fp32 copies of the gradients
        finally:
            ledger.stop()
        blocks = ledger.blocks
        times, sizes = memory_timeline.points(
            blocks.history, [*blocks.live.values()], ledger.now(ledger.steps), gpu.clock.ready())
        rows = {name: sizes.pop(name) for name in CATEGORIES[:-1]}
        rows[ACTIVATIONS] = map(sum, zip(*sizes.values(), strict=True))  # and what is temporary
        return (tuple(time - begin for time in times[before - 1:]),
                {name: tuple(row)[before - 1:] for name, row in rows.items()})

    def _label(self, ledger: Ledger) -> None:
        """Label what lives on between steps; fp32 parameters are their own main parameters."""
        optimizer = self.optimizer
        for name, tensors in (
                (PARAMETERS, self.ddp.params.values()),
                (GRADIENTS, (self.ddp.grad_buffer, optimizer.main_grads)),
                (OPTIMIZER, (*optimizer.moments.values(), optimizer.main_params))):
            for tensor in tensors:
                for key in storages(tensor):
                    ledger.label(key, name)
