"""From steps to log lines: sum over the steps since the last line, and read values only for a line.

Reading a value waits for the device, so nothing here reads one unless it is printed or plotted.
Every other report that flags or the cluster ask for has the hooks of `Report`, which the log calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from minimegatron.context import Context, Progress
from minimegatron.errors import emit
from minimegatron.optim import Optimizer
from minimegatron.report.log_lines import iteration_line, memory_line, print_times, validation_lines
from minimegatron.timers import Timers
from pipeline_schedules import Schedule


class Run(Protocol):
    """What reports see of a trainer.

    Attributes:
        progress: progress of the run.
        vocab_size: the padded vocabulary size.
        schedule: the pipeline's schedule.
    """

    progress: Progress
    vocab_size: int
    schedule: Schedule


class Report:
    """One report. Override the hooks that matter; every rank calls all of them in the same order.

    A step calls `begin_step`, `step_launched`, `end_step`, if a log line is due `quantities` and
    `line`, and `logged`.
    """

    def start(self, run: Run) -> None:
        """Begin to report, before the first step."""

    def begin_step(self, iteration: int) -> None:
        """Begin a step, before its clock starts."""

    def step_launched(self) -> None:
        """End a step before the clock waits for the device."""

    def end_step(self, log: StepLog, progress: Progress, learning_rate: torch.Tensor) -> None:
        """Report a step that was added to the log, before its log line.

        The progress is that after the step, and the learning rate (one element) the next step's.
        """

    def quantities(self, log: StepLog) -> dict[str, float | None]:
        """Return quantities for a log line, by their names in `iteration_line`."""
        return {}

    def line(self, progress: Progress, values: Mapping[str, float | None],
             times: Mapping[str, float]) -> None:
        """Report a log line that was printed.

        Args:
            progress: after the last step of the line.
            values: its quantities, by their names in `iteration_line`.
            times: seconds per step, by timer.
        """

    def logged(self, log: StepLog, progress: Progress) -> None:
        """End a step, after its log line if it has one."""

    def validation(self, loss: float, dataset: str, progress: Progress) -> None:
        """Report a mean loss per token on data ("validation" or "test") that is not trained on."""

    def phase(self, state: str) -> None:
        """Begin something other than training steps, such as "evaluating"."""

    def end_training(self) -> None:
        """End the training steps; evaluations may follow."""

    def close(self) -> None:
        """Finish all files at the end of the run."""


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


class Quantities(Report):
    """Adds the number of zeros and the parameters' norm to the log line."""

    def quantities(self, log: StepLog) -> dict[str, float | None]:
        return read_quantities(log)


def read_quantities(log: StepLog) -> dict[str, float | None]:
    """Return the quantities that the flags ask for, by their names in `iteration_line`.

    Every rank must call it, after the log's last step.
    """
    ctx, optimizer, values = log.ctx, log.optimizer, {}
    if ctx.config.log_num_zeros_in_grad:
        values["zeros"] = ctx.read(num_zeros(optimizer))
    if ctx.config.log_params_norm:
        values["params_norm"] = ctx.read(params_norm(optimizer))
    return values


def params_norm(optimizer: Optimizer) -> torch.Tensor:
    """Return the Euclidean norm of the whole model's parameters, fp32, one element; collective."""
    return optimizer.model_norm(optimizer.param_buffer[part.params]
                                for part in optimizer.ranges if part.counted)


def num_zeros(optimizer: Optimizer) -> torch.Tensor:
    """Count the zeros in the whole model's gradient, int64, one element; collective."""
    grads = optimizer.ddp.grad_buffer
    counted = (grads[part.grads] for part in optimizer.ranges if part.counted)
    zeros = sum(((piece == 0).sum() for piece in counted),
                start=grads.new_zeros((), dtype=torch.int64))
    for group in optimizer.norm_groups:
        group.all_reduce(zeros)
    return zeros
