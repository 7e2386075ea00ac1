"""Create the reports that the flags and the cluster ask for.

A run without such a report imports neither this file nor those of the reports.
"""

from __future__ import annotations

import os

from minimegatron.context import Context
from minimegatron.logging.report import Report
from minimegatron.logging.timers import Timers


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
