"""Schedules other than GPipe and 1F1B: load and check them, and make sure that all ranks agree.

Only --schedule and virtual stages import this file.
"""

from __future__ import annotations

import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.errors import SharedError
from pipeline_schedules import Schedule, ScheduleError, check, load, to_text


def load_agreed_schedule(ctx: Context) -> Schedule:
    """Return a valid schedule of all stages; every rank must call it.

    Raises SharedError if the schedule is invalid on any rank, or if two ranks read different ones.
    """
    config, source = ctx.config, f"--schedule {ctx.config.schedule}"
    stages, micro_batches = ctx.grid.pp.size, config.num_micro_batches
    schedule, problem = [], None
    try:
        schedule = load(config.schedule, stages, micro_batches, config.chunks)
        check(schedule, stages=stages, micro_batches=micro_batches, chunks=config.chunks,
              source=source)
    except ScheduleError as error:
        problem = str(error)
    versions: list[tuple[str | None, list[str]]] = [(None, [])] * ctx.grid.world_size
    dist.all_gather_object(versions, (problem, to_text(schedule)))
    other = next((rank for rank, seen in enumerate(versions) if seen != versions[0]), None)
    for rank, (problem, _) in enumerate(versions):
        if problem is not None:
            raise SharedError(problem if other is None
                              else f"on rank {rank}, not on all: {problem}")
    if other is not None:
        raise SharedError(f"{source}: rank 0 and rank {other} read different schedules from it; "
                          "give a file that all nodes share, and that always yields the same "
                          "schedule")
    return schedule
