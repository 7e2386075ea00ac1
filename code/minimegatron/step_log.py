"""From steps to log lines: sums between two lines, reads values only where one is shown."""

from __future__ import annotations

import torch

from minimegatron.checkpoint import Progress
from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.optimizer import Optimizer
from minimegatron.report import TensorBoard, iteration_line, memory_line
from minimegatron.timers import Timers, time_line


class StepLog:
    def __init__(self, ctx: Context, timers: Timers, board: TensorBoard, optimizer: Optimizer
                 ) -> None:
        self.ctx, self.timers, self.board, self.optimizer = ctx, timers, board, optimizer
        self.memory_reported = False
        self.norm: torch.Tensor | None = None
        self.loss: torch.Tensor | None = None
        self._restart()

    def _restart(self) -> None:
        on = self.ctx.device.torch_device
        self.steps, self.seconds, self.step_seconds = 0, 0.0, 0.0
        self.total = torch.zeros((), device=on)  # of finite losses, summed over steps
        self.nans = torch.zeros((), device=on)

    def add(self, loss: torch.Tensor, norm: torch.Tensor, seconds: float) -> None:
        """One step: this rank's mean loss, the gradient norm, and how long it took."""
        finite = torch.isfinite(loss)
        self.total += torch.where(finite, loss, 0.0)
        self.nans += ~finite
        self.loss, self.norm = loss, norm
        self.steps += 1
        self.seconds += seconds
        self.step_seconds = seconds

    def report(self, progress: Progress, lr: float) -> None:
        """Plot and print what is due after this step; the same collectives on every rank."""
        if self.board.is_due(progress.iteration):
            self._plot(progress, lr)
        if progress.iteration % self.ctx.config.log_interval == 0:
            self._print(progress, lr)

    def _print(self, progress: Progress, lr: float) -> None:
        ctx, config, replicas = self.ctx, self.ctx.config, self.ctx.grid.dp
        sums = torch.stack((self.total, self.nans))
        replicas.all_reduce(sums)
        total, nans = ctx.read(sums[0]), ctx.read(sums[1])
        finite = None if nans is None else self.steps * replicas.size - nans
        line = iteration_line(
            config, iteration=progress.iteration, consumed=progress.consumed_train_samples,
            milliseconds=1000 * self.seconds / self.steps, lr=lr,
            loss=total / finite if finite else None, norm=ctx.read(self.norm),
            zeros=self._zeros(), params_norm=self._params_norm(),
            nans=-(-int(nans or 0) // replicas.size))
        ctx.say_last(line)
        if lr > 0 and not self.memory_reported:
            self.memory_reported = True
            if ctx.grid.writes_shard:
                emit(memory_line(ctx, progress.iteration))
        seconds = self.timers.take()
        ctx.say_last(time_line(seconds, self.steps))
        if config.log_timers_to_tensorboard:
            for name, value in seconds.items():
                self.board.scalar(f"{name}-time", value / self.steps, progress.iteration)
        self._restart()

    def _plot(self, progress: Progress, lr: float) -> None:
        ctx, config, board = self.ctx, self.ctx.config, self.board
        loss = self.loss / ctx.grid.dp.size
        ctx.grid.dp.all_reduce(loss)
        at = progress.iteration, progress.consumed_train_samples
        board.scalar("lm loss", ctx.read(loss), *at)
        board.scalar("grad-norm", ctx.read(self.norm), *at)
        board.scalar("iteration-time", self.step_seconds, progress.iteration)
        if config.log_learning_rate_to_tensorboard:
            board.scalar("learning-rate", lr, *at)
        if config.log_loss_scale_to_tensorboard:
            board.scalar("loss-scale", 1.0, *at)
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

    def _zeros(self) -> float | None:
        if not self.ctx.config.log_num_zeros_in_grad:
            return None
        return self.ctx.read((self.optimizer.gradients.flat == 0).sum())

    def _params_norm(self) -> float | None:
        if not self.ctx.config.log_params_norm:
            return None
        norms = [torch.linalg.vector_norm(p.detach()) for p in self.optimizer.gradients.parameters]
        return self.ctx.read(torch.linalg.vector_norm(torch.stack(norms)))
