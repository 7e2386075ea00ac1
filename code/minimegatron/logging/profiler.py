"""The device's profiler (--profile-execution)."""

from __future__ import annotations

import os

from minimegatron.context import Context


class Profiler:
    """Profiles steps 3 and 4 on every rank, or on --profile-ranks.

    The traces are workers run_NAME_gpuRANK of one TensorBoard run, run_NAME, because the profiler
    tab's distributed view compares the workers of a run. The profiler skips the first step and
    warms up in the second.
    """

    def __init__(self, ctx: Context) -> None:
        self.profile = None
        config = ctx.config
        if config.profile_ranks and ctx.grid.rank not in config.profile_ranks:
            return
        name = f"run_{config.profile_name}"
        self.profile = ctx.device.profile(os.path.join(config.tensorboard_dir, name),
                                          f"{name}_gpu{ctx.grid.rank}")
        self.profile.start()

    def step(self) -> None:
        """Tell the profiler that a training step has ended."""
        if self.profile is not None:
            self.profile.step()

    def stop(self) -> None:
        if self.profile is not None:
            self.profile.stop()
