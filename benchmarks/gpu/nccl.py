"""Every collective of the trainer's process groups, over NCCL with one rank"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from benchmarks.gpu.result import Result, Table
from minimegatron.grid import make_group

LIMIT = 120
SIZE = 1 << 20


def run(quick: bool) -> Result:
    """Call every collective of a Group on GPU 0; with one rank, the output must equal the input.

    Args:
        quick: without effect, because most of these few seconds are startup.
    """
    result = Result()
    os.environ.pop("RANK", None)
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = make_group([(0,)], "nccl")
    table = Table("Collectives over NCCL with one rank",
                  ["collective", "dtype", "output equals input"])
    result.tables.append(table)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        given = torch.arange(SIZE, device="cuda").remainder(251).to(dtype)
        summed, started = given.clone(), given.clone()
        group.all_reduce(summed)
        group.start_all_reduce(started).wait()
        part = torch.full_like(given, -1)
        group.start_reduce_scatter(part, given).wait()
        for name, made in (("all_reduce", summed), ("start_all_reduce", started),
                           ("start_reduce_scatter", part), ("all_gather", group.all_gather(given)),
                           ("reduce_scatter", group.reduce_scatter(given))):
            equal = bool(torch.equal(made, given))
            table.add(name, str(dtype).removeprefix("torch."), equal)
            if not equal:
                result.failures.append(f"{name} of {dtype}: the output differs from the input")
    dist.destroy_process_group()
    return result
