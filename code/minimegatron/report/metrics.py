"""metrics.jsonl: the run's figures as one JSON object per line, so that no program parses the log.

The last rank, which knows the loss, appends to the file; docs/trainer.md lists the fields. A
resumed run appends to the same file. Every start of the trainer has its own value of `run`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.report.log_lines import perplexity
from minimegatron.report.step_log import Report

if TYPE_CHECKING:
    from minimegatron.context import Progress
    from minimegatron.report.step_log import Run

FILE = "metrics.jsonl"
# Fields of an iteration, and what `iteration_line` calls them.
NAMES = {"elapsed_ms_per_iteration": "milliseconds", "learning_rate": "lr", "lm_loss": "loss",
         "loss_scale": "loss_scale", "grad_norm": "norm", "num_zeros": "zeros",
         "params_norm": "params_norm", "tflops_per_gpu": "throughput",
         "skipped_iterations": "skipped", "nan_iterations": "nans"}


def metrics_path(config: Config) -> Path | None:
    """Return the file to append to, or None if the run has no place for one.

    It is --metrics, or metrics.jsonl in --tensorboard-dir, or, in a Slurm job,
    $LAB_HOME/megatron/logs/NAME_JOBID.metrics.jsonl if that folder exists.
    """
    if config.metrics:
        return Path(config.metrics).absolute()
    if config.tensorboard_dir:
        return Path(config.tensorboard_dir, FILE).absolute()
    job, home = os.environ.get("SLURM_JOB_ID"), os.environ.get("LAB_HOME")
    if job and home and (logs := Path(home, "megatron", "logs")).is_dir():
        name = re.sub(r"[^\w.-]+", "_", os.environ.get("SLURM_JOB_NAME", "job"))
        return logs / f"{name}_{job}.{FILE}"
    return None


class Metrics(Report):
    """Appends objects from the last rank; on every other rank, only takes part in collectives."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.file = ctx, None
        self.run = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self.path = metrics_path(ctx.config) if ctx.grid.is_last_rank else None
        if self.path is None:
            return
        try:
            self.file = open_to_append(self.path)
        except OSError as error:
            self._stop_writing(error)
        else:
            # Programs that read a log find the run's metrics by this line.
            ctx.print_rank_last(f"> writing metrics of run {self.run} to {self.path}")

    def start(self, run: Run) -> None:
        """Write the object that describes the run."""
        ctx, config, progress = self.ctx, self.ctx.config, run.progress
        self._write({
            "kind": "start", "iteration": progress.iteration,
            "consumed_samples": progress.consumed_train_samples,
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"), "device": ctx.device.name or "cpu",
            "world_size": config.world_size, "data_parallel_size": config.data_parallel_size,
            "tensor_model_parallel_size": config.tensor_model_parallel_size,
            "pipeline_model_parallel_size": config.pipeline_model_parallel_size,
            "arguments": {name: json_value(value)
                          for name, value in dataclasses.asdict(config).items()}})

    def line(self, progress: Progress, values: Mapping[str, float | None],
             times: Mapping[str, float]) -> None:
        """Write the object of one iteration line."""
        memory = self.ctx.device.memory()
        peaks = torch.tensor([memory.max_allocated, memory.max_reserved])  # [2], int64 on the host
        dist.all_reduce(peaks, op=dist.ReduceOp.MAX)  # in the control group, which is never modeled
        if self.file is None:
            return
        config = self.ctx.config
        allocated, reserved = (int(self.ctx.read(peak)) for peak in peaks)
        self._write({"kind": "iteration", "iteration": progress.iteration,
                     "train_iters": config.train_iters,
                     "consumed_samples": progress.consumed_train_samples,
                     "global_batch_size": config.global_batch_size,
                     **{name: values.get(own) for name, own in NAMES.items()},
                     "peak_memory_allocated_bytes": allocated,
                     "peak_memory_reserved_bytes": reserved})

    def validation(self, loss: float, dataset: str, progress: Progress) -> None:
        """Write a validation or test loss."""
        self._write({"kind": "validation", "dataset": dataset, "iteration": progress.iteration,
                     "consumed_samples": progress.consumed_train_samples, "lm_loss": loss,
                     "perplexity": perplexity(loss), "eval_iters": self.ctx.config.eval_iters})

    def _write(self, fields: dict[str, object]) -> None:
        """Append one object: all of its line or, on a full disk, nothing from then on."""
        if self.file is None:
            return
        about = {"run": self.run, "modeled": self.ctx.device.label or None,
                 "time_unix_seconds": time.time()}
        line = json.dumps(with_json_numbers({**fields, **about}), allow_nan=False).encode() + b"\n"
        size = os.fstat(self.file.fileno()).st_size
        try:
            if self.file.write(line) != len(line):  # unbuffered: a disk may fill in between
                raise OSError(0, "No space left on device")
        except OSError as error:
            with contextlib.suppress(OSError):
                self.file.truncate(size)
            self._stop_writing(error)

    def _stop_writing(self, error: OSError) -> None:
        """Warn once; training matters more than its metrics."""
        self.file = None
        self.ctx.print_rank_last(f"WARNING: metrics of run {self.run} are incomplete: {self.path} "
                                 f"cannot be written ({error.strerror})")


def open_to_append(path: Path) -> FileIO:
    """Open a file for unbuffered appending, after the end of a line. Raises OSError."""
    file = FileIO(path, "ab")
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and about.st_size:
        with open(path, "rb") as written:
            written.seek(-1, os.SEEK_END)
            if written.read() != b"\n":  # a run was killed in the middle of a line
                file.write(b"\n")
    return file


def with_json_numbers(fields: dict[str, object]) -> dict[str, object]:
    """Return the fields with null for NaN and infinity, which `non_finite` has as strings."""
    non_finite = {name: str(value) for name, value in fields.items()
                  if isinstance(value, float) and not math.isfinite(value)}
    return {**fields, **dict.fromkeys(non_finite), "non_finite": non_finite}


def json_value(value: object) -> object:
    """Return an argument as JSON has it: a finite number, a string, a list, null, or a boolean."""
    if isinstance(value, tuple):
        return [json_value(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)
