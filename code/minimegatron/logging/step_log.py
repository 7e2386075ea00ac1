"""From steps to log lines: sums between two lines, reads values only where one is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.logging.megatron import TensorBoard, iteration_line, memory_line
from minimegatron.logging.throughput import Throughput, memory_on_paper, theoretical_memory_line
from minimegatron.logging.timers import Timers, say_times

if TYPE_CHECKING:
    from minimegatron.checkpoint.save import Progress
    from minimegatron.optim.optimizer import Optimizer


class StepLog:
    def __init__(self, ctx: Context, timers: Timers, board: TensorBoard, optimizer: Optimizer,
                 vocab_size: int, live: Sequence[int]) -> None:
        """vocab_size: padded. live: of each stage, as schedules.peak_live."""
        self.ctx, self.timers, self.board, self.optimizer = ctx, timers, board, optimizer
        self.vocab_size, self.live = vocab_size, live
        self.throughput = Throughput(ctx, vocab_size) if ctx.config.log_throughput else None
        self.memory_reported = False
        self.norm: torch.Tensor | None = None
        self.shown: dict[str, float | None] = {}  # the last line's loss and TFLOP/s per device
        self._restart()

    def _restart(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.advanced: list[int | torch.Tensor] = []  # 0 for a skipped step
        self.seconds, self.step_seconds = 0.0, 0.0

    def add(self, loss: torch.Tensor, norm: torch.Tensor, seconds: float) -> None:
        """One step: this rank's mean loss (only the last stage has one, and only the last rank
        prints), the gradient norm, and how long it took."""
        self.losses.append(loss)
        self.advanced.append(self.optimizer.advanced)
        self.norm = norm
        self.seconds += seconds
        self.step_seconds = seconds

    def report(self, progress: Progress, lr: torch.Tensor) -> None:
        """Plot and print what is due after this step; the same collectives on every rank.

        lr: the learning rate now (one element).
        """
        if self.board.is_due(progress.iteration):
            self._plot(progress, lr)
        if progress.iteration % self.ctx.config.log_interval == 0:
            self._print(progress, lr)

    def _print(self, progress: Progress, lr_now: torch.Tensor) -> None:
        ctx, config, steps = self.ctx, self.ctx.config, len(self.losses)
        losses = torch.stack(self.losses) / ctx.grid.dp.size  # [steps], this rank's share
        ctx.grid.dp.all_reduce(losses)
        rate = self.throughput and self.throughput.of(self.seconds / steps)
        good, lr = ctx.read(torch.isfinite(losses).sum()), ctx.read(lr_now)
        mean, skipped = self._mean(losses)
        line = iteration_line(
            config, iteration=progress.iteration, consumed=progress.consumed_train_samples,
            milliseconds=1000 * self.seconds / steps, lr=lr,
            loss=mean, norm=self._norm(), loss_scale=self._scale(), skipped=skipped,
            zeros=self._zeros(), params_norm=self._params_norm(),
            nans=0 if good is None else steps - good, throughput=rate, label=ctx.device.label)
        ctx.say_last(line)
        self.shown = {"loss": mean, "tflops": rate}
        if self.throughput:
            ctx.say_last(self.throughput.line(rate))
            self.board.scalar("throughput", rate, progress.iteration)
        if lr > 0 and not self.memory_reported:
            self._report_memory(progress.iteration)
        seconds = self.timers.take()
        say_times(ctx, seconds, steps, ctx.device.label)
        if config.log_timers_to_tensorboard:
            for name, value in seconds.items():
                self.board.scalar(f"{name}-time", value / steps, progress.iteration)
        self._restart()

    def _report_memory(self, iteration: int) -> None:
        ctx = self.ctx
        self.memory_reported = True
        if ctx.config.log_throughput:
            ctx.say(theoretical_memory_line(
                *memory_on_paper(ctx.config, self.vocab_size, self.live)))
        if ctx.grid.writes_shard:
            emit(memory_line(ctx, iteration))

    def _plot(self, progress: Progress, lr: torch.Tensor) -> None:
        ctx, config, board = self.ctx, self.ctx.config, self.board
        loss = self.losses[-1] / ctx.grid.dp.size
        ctx.grid.dp.all_reduce(loss)
        at = progress.iteration, progress.consumed_train_samples
        board.scalar("lm loss", ctx.read(loss), *at)
        board.scalar("grad-norm", self._norm(), *at)
        board.scalar("iteration-time", self.step_seconds, progress.iteration)
        if config.log_learning_rate_to_tensorboard:
            board.scalar("learning-rate", ctx.read(lr), *at)
        if config.log_loss_scale_to_tensorboard:
            board.scalar("loss-scale", self._scale(), *at)
        if config.log_batch_size_to_tensorboard:
            board.scalar("batch-size", config.global_batch_size, *at)
        if config.log_world_size_to_tensorboard:
            board.scalar("world-size", config.world_size, *at)
        board.scalar("num-zeros", self._zeros(), *at)
        board.scalar("params-norm", self._params_norm(), *at)
        if config.log_memory_to_tensorboard:
            memory = ctx.device.memory()
            board.scalar("mem-reserved-bytes", memory.reserved, progress.iteration)
            board.scalar("mem-allocated-bytes", memory.allocated, progress.iteration)

    def _mean(self, losses: torch.Tensor) -> tuple[float | None, int]:
        """(mean over the steps that were not skipped, None where there is none; skipped steps)."""
        counts = torch.stack([torch.as_tensor(count, device=losses.device)
                              for count in self.advanced])
        steps = self.ctx.read(counts.sum())
        if steps == 0:
            return None, len(counts)
        mean = losses.where(counts > 0, 0).sum() / counts.sum()
        return self.ctx.read(mean), 0 if steps is None else len(counts) - steps

    def _norm(self) -> float | None:
        """The last step's, if it was not skipped."""
        advanced = self.advanced[-1]
        if isinstance(advanced, torch.Tensor) and not self.ctx.read(advanced):
            return None
        return self.ctx.read(self.norm)

    def _scale(self) -> float:
        """The loss scale; where tensors have no values, the first one: nothing overflows there."""
        scaler = self.optimizer.scaler
        if scaler is None:
            return 1.0
        scale = self.ctx.read(scaler.scale)
        config = self.ctx.config
        return scale or config.loss_scale or config.initial_loss_scale

    def _zeros(self) -> float | None:
        if not self.ctx.config.log_num_zeros_in_grad:
            return None
        return self.ctx.read(self.optimizer.num_zeros())

    def _params_norm(self) -> float | None:
        if not self.ctx.config.log_params_norm:
            return None
        return self.ctx.read(self.optimizer.model_norm(self.optimizer.weights))
