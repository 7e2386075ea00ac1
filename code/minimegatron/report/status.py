"""A status file for each rank, which `lab top` and `nvidia-smi` read while the job runs.

The cluster sets RANK_STATUS to a folder of the job, in which every rank replaces RANK.json
atomically. Without that variable, nothing is written.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from minimegatron.context import Context
from minimegatron.report.step_log import Report

if TYPE_CHECKING:
    from minimegatron.context import Progress
    from minimegatron.report.step_log import StepLog

WRITE_INTERVAL = 0.5  # seconds, at least, between two writes; its readers are people


class Status(Report):
    """The status file of one rank."""

    def __init__(self, ctx: Context) -> None:
        folder = os.environ.get("RANK_STATUS")
        self.path = Path(folder) / f"{ctx.grid.rank}.json" if folder else None
        self.device, self.written = ctx.device, 0.0
        self.shown: dict[str, float | None] = {}  # loss and TFLOP/s of the log's last line
        self.last_step_ended, self.pace = None, None
        config, grid = ctx.config, ctx.grid
        self.fields: dict[str, object] = {
            "rank": grid.rank, "world_size": grid.world_size, "pid": os.getpid(),
            "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "job": os.environ.get("SLURM_JOB_ID"),
            "local_rank": int(os.environ.get("LOCAL_RANK", 0)),
            "place": grid.position,
            "device": ctx.device.name or ctx.device.kind, "modeled": bool(ctx.device.label),
            "started": time.time(), "train_iters": config.train_iters, "iteration": 0,
            "global_batch_size": config.global_batch_size, "state": "starting"}
        self.update()

    def update(self, now: bool = True, **fields: object) -> None:
        """Change fields of the file.

        Args:
            now: whether to write at once, rather than at most every WRITE_INTERVAL seconds.
            **fields: their new values.
        """
        self.fields |= fields
        if self.path is None or (not now and time.time() < self.written + WRITE_INTERVAL):
            return
        self.written = time.time()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(
                {**self.fields, **self.device.status(), "time": self.written}))
            os.replace(unfinished, self.path)
        except OSError:  # a full disk must not end the training
            self.path = None

    def phase(self, state: str) -> None:
        """Set a state other than training."""
        self.last_step_ended = None
        self.update(state=state)

    def step(self, iteration: int, seconds: float, shown: dict[str, float | None]) -> None:
        """Record a training step.

        The field `pace` is the usual time between two steps on this machine's clock, even if the
        device's clock is modeled, so that readers know how long a normal gap between updates is.

        Args:
            iteration: steps taken so far.
            seconds: time of the step on the device's clock.
            shown: loss and TFLOP/s of the log's last line.
        """
        now = time.time()
        if self.last_step_ended is not None:
            gap = now - self.last_step_ended
            self.pace = gap if self.pace is None else 0.8 * self.pace + 0.2 * gap
        self.last_step_ended = now
        self.update(now=False, state="training", iteration=iteration, milliseconds=1000 * seconds,
                    pace=self.pace, **shown)

    def line(self, progress: Progress, values: Mapping[str, float | None],
             times: Mapping[str, float]) -> None:
        self.shown = {"loss": values["loss"], "tflops": values.get("throughput")}

    def logged(self, log: StepLog, progress: Progress) -> None:
        self.step(progress.iteration, log.step_seconds, self.shown)
