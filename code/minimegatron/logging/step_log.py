"""From steps to log lines: sum over the steps since the last line, and read values only for a line.

Reading a value waits for the device, so nothing here reads one unless it is printed or plotted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.logging.megatron import (
    iteration_line,
    memory_line,
    print_times,
    theoretical_memory_line,
)
from minimegatron.logging.timers import Timers

if TYPE_CHECKING:
    from minimegatron.checkpoint.progress import Progress
    from minimegatron.logging.metrics import Metrics
    from minimegatron.logging.tensorboard import TensorBoard
    from minimegatron.optim.optimizer import Optimizer


class StepLog:
    """Prints a line every --log-interval steps, and passes its values to TensorBoard and metrics.

    Attributes:
        shown: loss and model TFLOP/s per GPU of the last line, for the status file.
    """

    def __init__(self, ctx: Context, timers: Timers, optimizer: Optimizer, vocab_size: int,
                 in_flight: Sequence[int], board: TensorBoard | None = None,
                 metrics: Metrics | None = None) -> None:
        """Prepare the first line; with --log-throughput, every rank must call it.

        Args:
            ctx: this rank's context.
            timers: printed with every line.
            optimizer: for the loss scale and norms.
            vocab_size: rows of the word embedding, including padding.
            in_flight: most micro-batches whose activations each stage holds at once.
            board: with --tensorboard-dir.
            metrics: if the run has a place for them.
        """
        self.ctx, self.timers, self.optimizer = ctx, timers, optimizer
        self.vocab_size, self.in_flight = vocab_size, in_flight
        self.board, self.metrics, self.throughput = board, metrics, None
        if ctx.config.log_throughput:
            from minimegatron.logging.throughput import Throughput

            self.throughput = Throughput(ctx, vocab_size)
        self.memory_reported = False
        self.norm: torch.Tensor | None = None
        self.shown: dict[str, float | None] = {}
        self._restart()

    def _restart(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.advanced: list[int | torch.Tensor] = []  # 0 for a skipped step
        self.seconds, self.step_seconds = 0.0, 0.0

    def add(self, loss: torch.Tensor, norm: torch.Tensor, seconds: float) -> None:
        """Add one step.

        Args:
            loss: this rank's mean loss (one element); only the last stage has one.
            norm: gradient norm (one element).
            seconds: on the device's clock.
        """
        self.losses.append(loss)
        self.advanced.append(self.optimizer.advanced)
        self.norm = norm
        self.seconds += seconds
        self.step_seconds = seconds

    def report(self, progress: Progress, learning_rate: torch.Tensor) -> None:
        """Plot and print what is due after this step; every rank must call it.

        Args:
            progress: after the step.
            learning_rate: of the next step (one element).
        """
        if self.board and self.board.is_due(progress.iteration):
            self._plot(progress, learning_rate)
        if progress.iteration % self.ctx.config.log_interval == 0:
            self._print(progress, learning_rate)

    def _print(self, progress: Progress, learning_rate: torch.Tensor) -> None:
        ctx, steps = self.ctx, len(self.losses)
        losses = torch.stack(self.losses) / ctx.grid.dp.size  # [steps], this rank's share
        ctx.grid.dp.all_reduce(losses)
        rate = self.throughput and self.throughput.of(self.seconds / steps)
        finite, lr = ctx.read(torch.isfinite(losses).sum()), ctx.read(learning_rate)
        mean, skipped = self._mean(losses)
        values = {"milliseconds": 1000 * self.seconds / steps, "lr": lr, "loss": mean,
                  "norm": self._norm(), "loss_scale": self._scale(), "skipped": skipped,
                  "zeros": self._zeros(), "params_norm": self._params_norm(),
                  "nans": 0 if finite is None else steps - finite, "throughput": rate}
        self._write_metrics(progress, values)
        ctx.print_rank_last(iteration_line(
            ctx.config, iteration=progress.iteration, consumed=progress.consumed_train_samples,
            label=ctx.device.label, **values))
        self.shown = {"loss": mean, "tflops": rate}
        if self.throughput:
            ctx.print_rank_last(self.throughput.line(rate))
            if self.board:
                self.board.scalar("throughput", rate, progress.iteration)
        if lr > 0 and not self.memory_reported:
            self._report_memory(progress.iteration)
        self._print_times(progress.iteration, steps)
        self._restart()

    def _write_metrics(self, progress: Progress, values: dict[str, float | None]) -> None:
        """Write the values of an iteration line under names that include their units."""
        if self.metrics is None:
            return
        names = {"elapsed_ms_per_iteration": "milliseconds", "learning_rate": "lr",
                 "lm_loss": "loss", "grad_norm": "norm", "loss_scale": "loss_scale",
                 "num_zeros": "zeros", "params_norm": "params_norm", "tflops_per_gpu": "throughput",
                 "skipped_iterations": "skipped", "nan_iterations": "nans"}
        self.metrics.iteration({"iteration": progress.iteration,
                                "consumed_samples": progress.consumed_train_samples,
                                **{name: values[own] for name, own in names.items()}})

    def _print_times(self, iteration: int, steps: int) -> None:
        seconds = self.timers.take()
        print_times(self.ctx, seconds, steps, self.ctx.device.label)
        if self.board and self.ctx.config.log_timers_to_tensorboard:
            for name, value in seconds.items():
                self.board.scalar(f"{name}-time", value / steps, iteration)

    def _report_memory(self, iteration: int) -> None:
        ctx = self.ctx
        self.memory_reported = True
        if ctx.config.log_throughput:
            from minimegatron.logging.throughput import memory_on_paper

            ctx.print_rank_0(theoretical_memory_line(
                *memory_on_paper(ctx.config, self.vocab_size, self.in_flight)))
        if ctx.grid.writes_shard:
            emit(memory_line(ctx, iteration))

    def _plot(self, progress: Progress, learning_rate: torch.Tensor) -> None:
        ctx, config, board = self.ctx, self.ctx.config, self.board
        loss = self.losses[-1] / ctx.grid.dp.size
        ctx.grid.dp.all_reduce(loss)
        at = progress.iteration, progress.consumed_train_samples
        board.scalar("lm loss", ctx.read(loss), *at)
        board.scalar("grad-norm", self._norm(), *at)
        board.scalar("iteration-time", self.step_seconds, progress.iteration)
        if config.log_learning_rate_to_tensorboard:
            board.scalar("learning-rate", ctx.read(learning_rate), *at)
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
        return self.ctx.read(self.optimizer.model_norm(self.optimizer.param_buffer))
