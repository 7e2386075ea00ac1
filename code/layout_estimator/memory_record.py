"""Record one training step's memory over time: every allocation of the virtual GPU, by category.

The trainer's own code runs two steps of a stage on one virtual GPU. The first one creates the
optimizer's state, and the second one is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from layout_estimator.representative import RepresentativeContext
    from virtualgpu.core.card import Card
    from virtualgpu.core.gpu import VirtualGpu
    from virtualgpu.core.plan import OperationPlan

CATEGORIES = ("parameters", "optimizer state", "gradients", "activations")


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
        capacity: the GPU's memory.
    """

    seconds: tuple[float, ...]
    categories: dict[str, tuple[int, ...]]
    allocated: int
    requested: int
    reserved: int
    outside: int
    capacity: int

    @property
    def totals(self) -> list[int]:
        """Return the allocated bytes from each time on."""
        return [sum(row) for row in zip(*self.categories.values(), strict=True)]

    @property
    def fits(self) -> bool:
        """Whether tensors, the CUDA context, and NCCL fit the GPU."""
        return self.allocated + self.outside <= self.capacity


def record(flags: Sequence[str]) -> MemoryRecord:
    """Record a step of a run without pipeline parallelism, on a GPU that never runs out of memory.

    Args:
        flags: those of `pretrain_gpt.py --estimate`, with a virtual device.

    Raises:
        EstimateError: the trainer does not accept the flags, or they ask for a pipeline.
    """
    with _context(flags) as (ctx, vocab_size, card):
        found = _Steps(ctx, vocab_size).record()
        groups = {ctx.grid.replicas.ranks, ctx.grid.tp.ranks}
        outside = (ctx.device.gpu.memory.non_pytorch
                   + sum(ctx.cluster.buffer_bytes(ranks) for ranks in groups))
    return replace(found, outside=outside, capacity=card.memory)


def forward_of(flags: Sequence[str]) -> tuple[float, int]:
    """Return the seconds of a micro-batch's forward pass, and the bytes that it leaves allocated.

    Args:
        flags: as for `record`.

    Raises:
        EstimateError: as `record`.
    """
    from layout_estimator.measurement import Meter, begin_step, draw_micro_batch, run_action
    from pipeline_schedules import FORWARD, Action

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
    from layout_estimator.cluster import modeled_cluster
    from layout_estimator.estimate import UNLIMITED_MEMORY
    from layout_estimator.planner import make_estimator, padded_vocabulary
    from layout_estimator.representative import representative_context
    from layout_estimator.requests import EstimateError, read_flags

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
    """The steps of one rank, with a ledger of its allocations."""

    def __init__(self, ctx: RepresentativeContext, vocab_size: int) -> None:
        from layout_estimator.measurement import stage_pipeline
        from minimegatron.optim import LearningRate, Optimizer
        from minimegatron.parallel.stages import build_chunks, data_parallel
        from minimegatron.timers import Timers
        from pipeline_schedules import BACKWARD, FORWARD

        self.ctx, self.log = ctx, None
        self.chunks = build_chunks(ctx, vocab_size)
        self.ddp = data_parallel(ctx, self.chunks[0])
        self.ddp.overlap = None
        self.optimizer, self.rate = Optimizer(ctx, self.ddp), LearningRate(ctx.config)
        self.timers = Timers(ctx.device.now, ctx.config.timing_log_level)
        self.pipeline = stage_pipeline(ctx, self.chunks, self.ddp, (FORWARD, BACKWARD))

    def step(self) -> None:
        """Take one step as the trainer does, with the stage's micro-batches one after another."""
        from layout_estimator.measurement import begin_step, draw_micro_batch, run_action
        from pipeline_schedules import BACKWARD, FORWARD, Action

        config = self.ctx.config
        self.optimizer.zero_grad()
        replicas = config.world_size // config.tensor_model_parallel_size
        count = config.global_batch_size // (config.micro_batch_size * replicas)
        batches = [draw_micro_batch(self.ctx) for _ in range(count)]
        begin_step(self.ctx, self.pipeline)
        for number in range(count):
            for kind in (FORWARD, BACKWARD):
                run_action(self.pipeline, Action(kind, number), *batches)
        self.chunks[0].end_step()
        self.ddp.finish_grad_sync()
        if self.log is not None:
            self.log.in_update = True  # from here on, fp32 copies of the gradients
        self.optimizer.step(self.rate.value(), self.timers)

    def record(self) -> MemoryRecord:
        """Take a step, and then one that is recorded."""
        self.step()
        gpu = self.ctx.device.gpu
        gpu.clock.synchronize()
        gpu.memory.reset_peaks()
        log = gpu.ledger = self.log = _Log(gpu, self._owners())
        try:
            self.step()
        finally:
            gpu.ledger = None
        memory = gpu.memory
        return MemoryRecord(tuple(log.seconds), {
            name: tuple(row) for name, row in log.rows.items()},
            memory.peak, memory.peak_requested, memory.peak_reserved, 0, 0)

    def _owners(self) -> dict[int, str]:
        """Return the category of each storage that lives on between steps."""
        optimizer, owners = self.optimizer, {}
        state = [*optimizer.moments.values(), optimizer.main_params]
        gradients = [self.ddp.grad_buffer,
                     *(each.main_grad for each in self.ddp.accumulators.values())]
        for name, tensors in (("gradients", gradients), ("optimizer state", state),
                              ("parameters", [optimizer.param_buffer,
                                              *self.ddp.params.values()])):
            for tensor in tensors:
                if tensor is not None:
                    owners[tensor.untyped_storage()._cdata] = name
        return owners


class _Log:
    """Takes the place of a ledger (virtualgpu.export.ledger), and adds up bytes by category."""

    def __init__(self, gpu: VirtualGpu, owners: dict[int, str]) -> None:
        """Begin with what is allocated now.

        Args:
            gpu: the virtual GPU.
            owners: the category of each storage that lives on between steps.
        """
        self.clock, self.begin, self.in_update = gpu.clock, gpu.clock.ready(), False
        self.current = dict.fromkeys(CATEGORIES, 0)
        self.sizes: dict[int, tuple[str, int]] = {}
        self.seconds: list[float] = []
        self.rows: dict[str, list[int]] = {name: [] for name in CATEGORIES}
        for key, block in gpu.blocks.items():
            self._add(key, owners.get(key, "activations"), block.size)
        self._note()

    def allocated(self, key: int, _size: int, held: int) -> None:
        self._add(key, "gradients" if self.in_update else "activations", held)
        self._note()

    def released(self, key: int, _held: int) -> None:
        name, size = self.sizes.pop(key)
        self.current[name] -= size
        self._note()

    def resized(self, key: int, size: int, before: int, held: int) -> None:
        name, _ = self.sizes[key]  # of a sharded layer, which is in memory for a while
        self.released(key, before)
        self._add(key, name, held)
        self._note()

    def operation(self, plan: OperationPlan, args: Sequence) -> None:
        pass

    def detached(self, tensor: torch.Tensor) -> None:
        pass

    def communicated(self, name: str, tensors: Sequence) -> None:
        pass

    def label(self, key: int, category: str) -> None:
        pass

    def _add(self, key: int, name: str, size: int) -> None:
        self.sizes[key] = name, size
        self.current[name] += size

    def _note(self) -> None:
        self.seconds.append(self.clock.ready() - self.begin)
        for name, size in self.current.items():
            self.rows[name].append(size)
