"""From steps to log lines: sum over the steps since the last line, and read values only for a line.

Reading a value waits for the device, so nothing here reads one unless it is printed or plotted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.logging.megatron import iteration_line, memory_line, print_times
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
            timers: printed with every line.
            optimizer: for the loss scale and norms.
            vocab_size: rows of the word embedding, including padding.
            in_flight: most micro-batches whose activations each stage holds at once.
            board: with --tensorboard-dir.
            metrics: if the run has a place for them.
        """
        self.ctx, self.timers, self.optimizer = ctx, timers, optimizer
        self.in_flight, self.board, self.metrics, self.throughput = in_flight, board, metrics, None
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
            self.board.step(self, progress, learning_rate)
        if progress.iteration % self.ctx.config.log_interval == 0:
            self._print(progress, learning_rate)

    def _print(self, progress: Progress, learning_rate: torch.Tensor) -> None:
        ctx, steps = self.ctx, len(self.losses)
        losses = torch.stack(self.losses) / ctx.grid.dp.size  # [steps], this rank's share
        ctx.grid.dp.all_reduce(losses)
        rate = self.throughput and self.throughput.rate(self.seconds / steps)
        finite, lr = ctx.read(torch.isfinite(losses).sum()), ctx.read(learning_rate)
        mean, skipped = self._mean(losses)
        values = {"milliseconds": 1000 * self.seconds / steps, "lr": lr, "loss": mean,
                  "norm": self.grad_norm(), "loss_scale": self.loss_scale(), "skipped": skipped,
                  "zeros": self.num_zeros(), "params_norm": self.params_norm(),
                  "nans": 0 if finite is None else steps - finite, "throughput": rate}
        if self.metrics:
            self.metrics.iteration(progress, values)
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

    def _print_times(self, iteration: int, steps: int) -> None:
        seconds = self.timers.take()
        print_times(self.ctx, seconds, steps, self.ctx.device.label)
        if self.board and self.ctx.config.log_timers_to_tensorboard:
            for name, value in seconds.items():
                self.board.scalar(f"{name}-time", value / steps, iteration)

    def _report_memory(self, iteration: int) -> None:
        ctx = self.ctx
        self.memory_reported = True
        if self.throughput:
            ctx.print_rank_0(self.throughput.memory_line(self.in_flight))
        if ctx.grid.writes_shard:
            emit(memory_line(ctx, iteration))

    def _mean(self, losses: torch.Tensor) -> tuple[float | None, int]:
        """Return the mean over the steps that were not skipped, if any, and the skipped steps."""
        counts = torch.stack([torch.as_tensor(count, device=losses.device)
                              for count in self.advanced])
        steps = self.ctx.read(counts.sum())
        if steps == 0:
            return None, len(counts)
        mean = losses.where(counts > 0, 0).sum() / counts.sum()
        return self.ctx.read(mean), 0 if steps is None else len(counts) - steps

    def grad_norm(self) -> float | None:
        """Return the gradient norm of the last step, or None if it was skipped."""
        advanced = self.advanced[-1]
        if isinstance(advanced, torch.Tensor) and not self.ctx.read(advanced):
            return None
        return self.ctx.read(self.norm)

    def loss_scale(self) -> float:
        """Return the loss scale; on a virtual GPU, where nothing overflows, the initial one."""
        scaler = self.optimizer.scaler
        if scaler is None:
            return 1.0
        scale = self.ctx.read(scaler.scale)
        config = self.ctx.config
        return scale or config.loss_scale or config.initial_loss_scale

    def num_zeros(self) -> float | None:
        """Return the number of zero gradients, with --log-num-zeros-in-grad."""
        if not self.ctx.config.log_num_zeros_in_grad:
            return None
        from minimegatron.logging.zeros import num_zeros

        return self.ctx.read(num_zeros(self.optimizer))

    def params_norm(self) -> float | None:
        """Return the norm of the parameters, with --log-params-norm."""
        if not self.ctx.config.log_params_norm:
            return None
        return self.ctx.read(self.optimizer.model_norm(self.optimizer.param_buffer))
