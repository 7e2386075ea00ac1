"""Everything that observes a run: timers, the log, and the reports that flags ask for.

A report is imported only if its flag is given, so a plain run loads the timers and the log alone.
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
    from collections.abc import Sequence

    from minimegatron.checkpoint.progress import Progress
    from minimegatron.optim.optimizer import Optimizer


class Reports:
    """One rank's timers and reports; every rank must call every method, in the same order."""

    def __init__(self, ctx: Context) -> None:
        config = ctx.config
        self.ctx = ctx
        self.status = self.recorder = self.board = self.metrics = self.profiler = None
        if os.environ.get("RANK_STATUS"):
            from minimegatron.logging.status import Status

            self.status = Status(ctx)
        if config.timeline:
            from minimegatron.logging.timeline import Recorder

            self.recorder = Recorder(ctx)
        if config.tensorboard_dir:
            from minimegatron.logging.tensorboard import TensorBoard

            self.board = TensorBoard(ctx)
        if self._writes_metrics():
            from minimegatron.logging.metrics import Metrics

            self.metrics = Metrics(ctx)
        self.timers = Timers(ctx.device.now, config.timing_log_level, self.recorder,
                             ctx.device.mark)

    def _writes_metrics(self) -> bool:
        """Return whether the last rank has a file for metrics; its environment decides for all."""
        config, grid, place = self.ctx.config, self.ctx.grid, None
        if grid.is_last_rank and (config.metrics or config.tensorboard_dir
                                  or "SLURM_JOB_ID" in os.environ):
            from minimegatron.logging.metrics import metrics_path

            place = metrics_path(config)
        found = [place is not None]
        dist.broadcast_object_list(found, src=grid.world_size - 1)
        return found[0]

    def start(self, progress: Progress, optimizer: Optimizer, vocab_size: int,
              in_flight: Sequence[int]) -> None:
        """Begin to report on training.

        Args:
            progress: where a resumed run continues.
            optimizer: for the loss scale and norms.
            vocab_size: rows of the word embedding, including padding.
            in_flight: most micro-batches whose activations each stage holds at once.
        """
        ctx, config = self.ctx, self.ctx.config
        if config.profile_execution:
            from minimegatron.logging.profiler import Profiler

            self.profiler = Profiler(ctx)
        self.log = StepLog(ctx, self.timers, optimizer, vocab_size, in_flight, self.board,
                           self.metrics)
        if self.metrics:
            self.metrics.start(progress)
        if self.recorder:
            self.recorder.require_future(progress.iteration)

    def begin_step(self, iteration: int) -> None:
        """Start the step's clock, and its timeline if `iteration` is to be recorded."""
        if self.recorder:
            self.recorder.begin(iteration)
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
        if self.profiler:
            self.profiler.step()
        seconds = self.ctx.device.now() - self.step_started
        self.log.add(loss, norm, seconds)
        if self.recorder:
            self.recorder.finish()
        self.log.report(progress, learning_rate)
        if self.status:
            self.status.step(progress.iteration, seconds, self.log.shown)

    def validation(self, loss: float, prefix: str, dataset: str, progress: Progress) -> None:
        """Report a mean loss on data that is not trained on.

        Args:
            loss: mean loss per token.
            prefix: of the log line, such as "iteration 100".
            dataset: "validation" or "test".
            progress: of the training.
        """
        from minimegatron.logging.optional_lines import validation_lines

        for line in validation_lines(prefix, loss):
            self.ctx.print_rank_last(line)
        if self.board:
            self.board.validation(loss, progress)
        if self.metrics:
            self.metrics.validation(loss, dataset, progress)

    def phase(self, state: str) -> None:
        """Set the state in the status file to something other than training steps."""
        if self.status:
            self.status.phase(state)

    def stop_profiling(self) -> None:
        if self.profiler:
            self.profiler.stop()

    def close(self, state: str) -> None:
        """Finish all files at the end of the run.

        Args:
            state: the last one in the status file, such as "done".
        """
        if self.board:
            self.board.close()
        if self.status:
            self.status.update(state=state)
