"""TensorBoard scalars under Megatron-LM's tags (--tensorboard-dir)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from minimegatron.context import Context
from minimegatron.report.log_lines import perplexity
from minimegatron.report.step_log import Report, read_quantities

if TYPE_CHECKING:
    import torch

    from minimegatron.context import Progress
    from minimegatron.report.step_log import StepLog


class TensorBoard(Report):
    """Writes scalars from the last rank; on the other ranks it does nothing."""

    def __init__(self, ctx: Context) -> None:
        self.config, self.writer = ctx.config, None
        if ctx.config.tensorboard_dir and ctx.grid.is_last_rank:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            # Unless this run resumes one, TensorBoard hides what an earlier run has left in the
            # folder: its points would be connected with ours.
            self.writer = SummaryWriter(ctx.config.tensorboard_dir,
                                        max_queue=ctx.config.tensorboard_queue_size,
                                        purge_step=None if ctx.config.load else 0)
            for name, value in dataclasses.asdict(ctx.config).items():
                self.writer.add_text(name, str(value))
            if ctx.device.label:
                self.writer.add_text("times and memory are modeled", ctx.device.label)

    def is_due(self, iteration: int) -> bool:
        """Return whether this iteration is plotted, which is the same on every rank."""
        config = self.config
        return bool(config.tensorboard_dir) and iteration % config.tensorboard_log_interval == 0

    def scalar(self, tag: str, value: float | None, iteration: int,
               samples: int | None = None) -> None:
        """Write one point.

        Args:
            tag: Megatron-LM's name of the quantity.
            value: None is left out.
            iteration: the x-coordinate.
            samples: if given, write a second curve over consumed samples.
        """
        if self.writer is None or value is None:
            return
        self.writer.add_scalar(tag, value, iteration)
        if samples is not None:
            self.writer.add_scalar(f"{tag} vs samples", value, samples)

    def end_step(self, log: StepLog, progress: Progress, learning_rate: torch.Tensor) -> None:
        ctx, config = log.ctx, self.config
        if not self.is_due(progress.iteration):
            return
        loss = log.losses[-1] / ctx.grid.replicas.size
        ctx.grid.replicas.all_reduce(loss)
        at = progress.iteration, progress.consumed_train_samples
        self.scalar("lm loss", ctx.read(loss), *at)
        self.scalar("grad-norm", log.grad_norm(), *at)
        self.scalar("iteration-time", log.step_seconds, progress.iteration)
        if config.log_learning_rate_to_tensorboard:
            self.scalar("learning-rate", ctx.read(learning_rate), *at)
        if config.log_loss_scale_to_tensorboard:
            self.scalar("loss-scale", log.loss_scale(), *at)
        if config.log_batch_size_to_tensorboard:
            self.scalar("batch-size", config.global_batch_size, *at)
        if config.log_world_size_to_tensorboard:
            self.scalar("world-size", config.world_size, *at)
        extra = read_quantities(log)
        self.scalar("num-zeros", extra.get("zeros"), *at)
        self.scalar("params-norm", extra.get("params_norm"), *at)
        if config.log_memory_to_tensorboard:
            memory = ctx.device.memory()
            self.scalar("mem-reserved-bytes", memory.reserved, progress.iteration)
            self.scalar("mem-allocated-bytes", memory.allocated, progress.iteration)

    def line(self, progress: Progress, values: Mapping[str, float | None],
             times: Mapping[str, float]) -> None:
        self.scalar("throughput", values.get("throughput"), progress.iteration)
        if self.config.log_timers_to_tensorboard:
            for name, seconds in times.items():
                self.scalar(f"{name}-time", seconds, progress.iteration)

    def validation(self, loss: float, dataset: str, progress: Progress) -> None:
        at = progress.iteration, progress.consumed_train_samples
        self.scalar("lm loss validation", loss, *at)
        if self.config.log_validation_ppl_to_tensorboard:
            self.scalar("lm loss validation ppl", perplexity(loss), *at)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
