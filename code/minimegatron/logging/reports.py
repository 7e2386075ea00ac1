"""Everything that observes a run: timers, the log, and the reports that flags ask for.

Only a run with an optional report imports its file (optional_reports.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.logging.step_log import StepLog
from minimegatron.logging.timers import Timers

if TYPE_CHECKING:
    from minimegatron.checkpoint.progress import Progress
    from minimegatron.logging.report import Report
    from minimegatron.training import Trainer

FLAGS = ("timeline", "profile_execution", "tensorboard_dir", "metrics", "log_throughput",
         "log_num_zeros_in_grad", "log_params_norm")


class Reports:
    """One rank's timers, log, and optional reports; every rank must call every method, in the same
    order."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.timers = Timers(ctx.device.now, ctx.config.timing_log_level, mark=ctx.device.mark)
        self.optional: list[Report] = []
        # Slurm may have started only some of the ranks; the last one writes the metrics.
        in_slurm = ["SLURM_JOB_ID" in os.environ]
        dist.broadcast_object_list(in_slurm, src=ctx.grid.world_size - 1)
        if (in_slurm[0] or os.environ.get("RANK_STATUS")
                or any(getattr(ctx.config, name) for name in FLAGS)):
            from minimegatron.logging.optional_reports import optional_reports

            self.optional = optional_reports(ctx, self.timers, in_slurm[0])

    def start(self, trainer: Trainer) -> None:
        """Begin to report on a trainer, before its first step."""
        self.log = StepLog(self.ctx, self.timers, trainer.optimizer, self.optional)
        for report in self.optional:
            report.start(trainer)

    def begin_step(self, iteration: int) -> None:
        """Start the step's clock."""
        for report in self.optional:
            report.begin_step(iteration)
        self.step_started = self.ctx.device.begin_step()

    def end_step(self, loss: torch.Tensor, norm: torch.Tensor, progress: Progress,
                 learning_rate: torch.Tensor) -> None:
        """Report on the step that just ended.

        Args:
            loss: this rank's mean loss (one element).
            norm: gradient norm (one element).
            progress: after the step.
            learning_rate: of the next step (one element).
        """
        for report in self.optional:
            report.step_launched()
        self.log.add(loss, norm, self.ctx.device.now() - self.step_started)
        for report in self.optional:
            report.end_step(self.log, progress, learning_rate)
        self.log.report(progress, learning_rate)
        for report in self.optional:
            report.logged(self.log, progress)

    def phase(self, state: str) -> None:
        """Begin something other than training steps, such as "evaluating"."""
        for report in self.optional:
            report.phase(state)

    def end_training(self) -> None:
        """End the training steps; evaluations may follow."""
        for report in self.optional:
            report.end_training()

    def close(self, state: str) -> None:
        """Finish all files at the end of the run, whose last state is `state`, such as "done"."""
        self.phase(state)
        for report in self.optional:
            report.close()
