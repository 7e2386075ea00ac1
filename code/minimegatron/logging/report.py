"""The reports that flags and the cluster ask for, and the hooks that reports.py calls.

A run without such a report does not import this file, nor the files of the reports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from minimegatron.context import Context
from minimegatron.logging.timers import Timers

if TYPE_CHECKING:
    import torch

    from minimegatron.checkpoint.progress import Progress
    from minimegatron.logging.step_log import StepLog
    from minimegatron.training import Trainer


class Report:
    """One report. Override the hooks that matter; every rank calls all of them in the same order.
    """

    def start(self, trainer: Trainer) -> None:
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


def optional_reports(ctx: Context, timers: Timers, in_slurm: bool) -> list[Report]:
    """Create the reports that the flags and the environment ask for.

    `in_slurm` tells whether the last rank is part of a Slurm job.
    """
    config, reports = ctx.config, []
    if config.profile_execution:
        from minimegatron.logging.profiler import Profiler

        reports.append(Profiler(ctx))
    if config.timeline:
        from minimegatron.logging.timeline import Recorder

        timers.recorder = Recorder(ctx)
        reports.append(timers.recorder)
    if config.log_throughput:
        from minimegatron.logging.throughput import ThroughputReport

        reports.append(ThroughputReport(ctx))
    if config.log_num_zeros_in_grad or config.log_params_norm:
        from minimegatron.logging.quantities import Quantities

        reports.append(Quantities())
    if config.tensorboard_dir:
        from minimegatron.logging.tensorboard import TensorBoard

        reports.append(TensorBoard(ctx))
    if config.metrics or config.tensorboard_dir or in_slurm:
        from minimegatron.logging.metrics import Metrics

        reports.append(Metrics(ctx))
    if os.environ.get("RANK_STATUS"):
        from minimegatron.logging.status import Status

        reports.append(Status(ctx))
    return reports
