"""From steps to log lines: sum over the steps since the last line, and read values only for a line.

Reading a value waits for the device, so nothing here reads one unless it is printed or plotted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from minimegatron.context import Context
from minimegatron.errors import emit
from minimegatron.report.log_lines import iteration_line, memory_line, print_times, validation_lines
from minimegatron.timers import Timers

if TYPE_CHECKING:
    from minimegatron.context import Progress
    from minimegatron.optim import Optimizer
    from minimegatron.report.report import Report, Run


class StepLog:
    """Prints a line every --log-interval steps, and passes steps and lines on to the reports.

    Every rank must call every method, in the same order.

    Attributes:
        losses: this rank's loss of each step since the last line.
        advanced: 0 for each step since the last line that was skipped, 1 for the others.
        seconds: time of all steps since the last line, on the device's clock.
        step_seconds: time of the last step.
        norm: gradient norm of the last step.
    """

    def __init__(self, ctx: Context, timers: Timers, optimizer: Optimizer,
                 reports: Sequence[Report] = ()) -> None:
        """Prepare the first line. The optimizer has the loss scale, and knows skipped steps."""
        self.ctx, self.timers, self.optimizer, self.reports = ctx, timers, optimizer, reports
        self.memory_reported = False
        self._restart()

    def _restart(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.advanced: list[int | torch.Tensor] = []
        self.seconds = 0.0

    def start(self, run: Run) -> None:
        """Begin to report on a run, before its first step."""
        for report in self.reports:
            report.start(run)

    def begin_step(self, iteration: int) -> None:
        """Start the step's clock."""
        for report in self.reports:
            report.begin_step(iteration)
        self.step_started = self.ctx.device.begin_step()

    def end_step(self, loss: torch.Tensor, norm: torch.Tensor, progress: Progress,
                 learning_rate: torch.Tensor) -> None:
        """Report on the step that just ended.

        Args:
            loss: this rank's loss, as `Trainer.step` returns it; only the last stage has one.
            norm: gradient norm (one element).
            progress: after the step.
            learning_rate: the next step's (one element).
        """
        for report in self.reports:
            report.step_launched()
        self.add(loss, norm, self.ctx.device.now() - self.step_started)
        for report in self.reports:
            report.end_step(self, progress, learning_rate)
        self.report(progress, learning_rate)
        for report in self.reports:
            report.logged(self, progress)

    def phase(self, state: str) -> None:
        """Begin something other than training steps, such as "evaluating"."""
        for report in self.reports:
            report.phase(state)

    def validation(self, loss: float | None, data: str, prefix: str, progress: Progress) -> None:
        """Report a mean loss on the data of this name, in a line that begins with `prefix`.

        On virtual GPUs there is no loss to report.
        """
        if loss is None:
            return
        for line in validation_lines(prefix, loss):
            self.ctx.print_rank_last(line)
        for report in self.reports:
            report.validation(loss, data, progress)

    def end_training(self) -> None:
        """End the training steps; evaluations may follow."""
        for report in self.reports:
            report.end_training()

    def close(self, state: str) -> None:
        """Finish all files at the end of the run, whose last state is `state`, such as "done"."""
        self.phase(state)
        for report in self.reports:
            report.close()

    def add(self, loss: torch.Tensor, norm: torch.Tensor, seconds: float) -> None:
        """Add one step of `seconds` on the device's clock; loss and norm have one element."""
        self.losses.append(loss)
        self.advanced.append(self.optimizer.advanced)
        self.norm, self.step_seconds = norm, seconds
        self.seconds += seconds

    def report(self, progress: Progress, learning_rate: torch.Tensor) -> None:
        """Print a line if one is due after this step; `end_step` describes the arguments."""
        ctx, steps, iteration = self.ctx, len(self.losses), progress.iteration
        if iteration % ctx.config.log_interval != 0:
            return
        losses = torch.stack(self.losses) / ctx.grid.replicas.size  # [steps], this rank's share
        ctx.grid.replicas.all_reduce(losses)
        finite, lr = ctx.read(torch.isfinite(losses).sum()), ctx.read(learning_rate)
        mean, skipped = self._mean(losses)
        values = {"milliseconds": 1000 * self.seconds / steps, "lr": lr, "loss": mean,
                  "norm": self.grad_norm(), "loss_scale": self.loss_scale(), "skipped": skipped,
                  "nans": 0 if finite is None else steps - finite}
        for report in self.reports:
            values |= report.quantities(self)
        ctx.print_rank_last(iteration_line(
            ctx.config, iteration=iteration, consumed=progress.consumed_train_samples,
            label=ctx.device.label, **values))
        times = {name: seconds / steps for name, seconds in self.timers.take().items()}
        for report in self.reports:
            report.line(progress, values, times)
        if lr > 0 and not self.memory_reported:
            self.memory_reported = True
            if ctx.grid.writes_shard:
                emit(memory_line(ctx, iteration))
        print_times(ctx, times, ctx.device.label)
        self._restart()

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
