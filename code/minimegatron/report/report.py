"""The hooks of a report that flags or the cluster ask for; step_log.py calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    import torch

    from minimegatron.context import Progress
    from minimegatron.optim import Optimizer
    from minimegatron.report.step_log import StepLog
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
    return optimizer.model_norm(optimizer.param_buffer[part.buffer]
                                for part in optimizer.ranges if part.counted)


def num_zeros(optimizer: Optimizer) -> torch.Tensor:
    """Count the zeros in the whole model's gradient, int64, one element; collective."""
    grads = optimizer.ddp.grad_buffer
    counted = (grads[part.buffer] for part in optimizer.ranges if part.counted)
    zeros = sum(((piece == 0).sum() for piece in counted),
                start=grads.new_zeros((), dtype=torch.int64))
    for group in optimizer.norm_groups:
        group.all_reduce(zeros)
    return zeros
