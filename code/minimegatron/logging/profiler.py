"""The device's profiler (--profile-execution)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch.profiler
from torch._C._profiler import _ExperimentalConfig

from minimegatron.context import Context
from minimegatron.logging.report import Report

if TYPE_CHECKING:
    from minimegatron.training import Trainer


def torch_profiler(folder: str, worker: str) -> torch.profiler.profile:
    """Return a profiler that records two steps and writes FOLDER/WORKER.TIME.pt.trace.json.

    TensorBoard shows `worker` as the rank's name.
    """
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        profile_memory=True, record_shapes=True, with_stack=True, with_modules=True,
        experimental_config=_ExperimentalConfig(verbose=True),  # an operator's call stack
        on_trace_ready=torch.profiler.tensorboard_trace_handler(folder, worker_name=worker))


class Profiler(Report):
    """Profiles steps 3 and 4 on every rank, or on --profile-ranks.

    The traces are workers run_NAME_gpuRANK of one TensorBoard run, run_NAME, because the profiler
    tab's distributed view compares the workers of a run. The profiler skips the first step and
    warms up in the second.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.profile = ctx, None

    def start(self, trainer: Trainer) -> None:
        config, rank = self.ctx.config, self.ctx.grid.rank
        if config.profile_ranks and rank not in config.profile_ranks:
            return
        name = f"run_{config.profile_name}"
        place = os.path.join(config.tensorboard_dir, name), f"{name}_gpu{rank}"
        self.profile = self.ctx.device.profile(*place) or torch_profiler(*place)
        self.profile.start()

    def step_launched(self) -> None:
        if self.profile is not None:
            self.profile.step()

    def end_training(self) -> None:
        if self.profile is not None:
            self.profile.stop()
