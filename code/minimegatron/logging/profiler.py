"""The device's profiler (--profile-execution)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from minimegatron.context import Context
from minimegatron.logging.report import Report

if TYPE_CHECKING:
    from minimegatron.training import Trainer


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
        self.profile = self.ctx.device.profile(os.path.join(config.tensorboard_dir, name),
                                               f"{name}_gpu{rank}")
        self.profile.start()

    def step_launched(self) -> None:
        if self.profile is not None:
            self.profile.step()

    def end_training(self) -> None:
        if self.profile is not None:
            self.profile.stop()
