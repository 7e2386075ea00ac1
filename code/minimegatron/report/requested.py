"""The reports that the flags and the cluster ask for; a run imports no other report's file."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.report.step_log import Quantities, Report
from minimegatron.timers import Timers

FLAGS = ("timeline", "profile_execution", "tensorboard_dir", "metrics", "log_throughput",
         "log_num_zeros_in_grad", "log_params_norm")


def requested_reports(ctx: Context, timers: Timers) -> list[Report]:
    """Return the reports that the flags and the cluster ask for; every rank must call it."""
    # Slurm may have started only some of the ranks; the last one writes the metrics.
    in_slurm = ["SLURM_JOB_ID" in os.environ]
    dist.broadcast_object_list(in_slurm, src=ctx.grid.world_size - 1)
    if not (in_slurm[0] or os.environ.get("RANK_STATUS")
            or any(getattr(ctx.config, name) for name in FLAGS)):
        return []
    return make_reports(ctx, timers, in_slurm[0])


def make_reports(ctx: Context, timers: Timers, in_slurm: bool) -> list[Report]:
    """Create the reports; `in_slurm` tells whether the last rank is part of a Slurm job.

    The libraries of some of them take seconds to import, so each is imported where it is made.
    """
    config, reports = ctx.config, []
    if config.profile_execution:
        from minimegatron.report.timeline import Profiler

        reports.append(Profiler(ctx))
    if config.timeline:
        from minimegatron.report.timeline import Recorder

        timers.recorder = Recorder(ctx)
        reports.append(timers.recorder)
    if config.log_throughput:
        from minimegatron.report.throughput import ThroughputReport

        reports.append(ThroughputReport(ctx))
    if config.log_num_zeros_in_grad or config.log_params_norm:
        reports.append(Quantities())
    if config.tensorboard_dir:
        from minimegatron.report.tensorboard import TensorBoard

        reports.append(TensorBoard(ctx))
    if config.metrics or config.tensorboard_dir or in_slurm:
        from minimegatron.report.metrics import Metrics

        for line in lone_ranks(os.environ):
            ctx.print_rank_0(line)
        reports.append(Metrics(ctx))
    if os.environ.get("RANK_STATUS"):
        from minimegatron.report.status import Status

        reports.append(Status(ctx))
    return reports


def lone_ranks(env: Mapping[str, str]) -> list[str]:
    """Return a warning if srun started several processes, and none knows of the others.

    Only the first of them has the warning. `env` are the environment variables.
    """
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")  # of this step; SLURM_NTASKS may be the job's
    if "RANK" in env or tasks == "1" or env.get("SLURM_PROCID") != "0":
        return []
    return [f"WARNING: SLURM_NTASKS={tasks}, but RANK and WORLD_SIZE are not set: each of these "
            f"{tasks} processes trains alone, as rank 0 of 1. For one run, start one task per node "
            "(--ntasks-per-node=1) with torchrun, or export RANK=$SLURM_PROCID, "
            "WORLD_SIZE=$SLURM_NTASKS, LOCAL_RANK=$SLURM_LOCALID, MASTER_ADDR, and MASTER_PORT in "
            "each"]
