"""Set up a rank: rendezvous, device, process groups, and threads."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.device.choose import choose_device
from minimegatron.errors import UserError
from minimegatron.parallel.grid import make_grid

if TYPE_CHECKING:
    from minimegatron.device.device import Device

RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


def initialize(config: Config) -> Context:
    """Join the job's process group and build the Context. Raises UserError."""
    if any((config.save, config.tensorboard_dir, config.timeline, config.metrics)):
        from minimegatron.outputs import create_folders

        create_folders(config)
    timeout = timedelta(minutes=config.distributed_timeout_minutes)
    join(config, timeout)
    local_rank = int(os.environ.get("LOCAL_RANK", config.local_rank or 0))
    device, notes = choose_device(config, local_rank)
    require_one_kind(device)
    notes += device.connect()
    grid = make_grid(config.pipeline_model_parallel_size, config.data_parallel_size,
                     config.tensor_model_parallel_size, device.backend, timeout)
    ctx = Context(config, grid, device)
    for note in notes:
        ctx.print_rank_0(note)
    if device.torch_device.type == "cpu":
        cap_threads(ctx)
    return ctx


def join(config: Config, timeout: timedelta, backend: str = "gloo") -> None:
    """Create the default process group. Raises UserError if the ranks cannot rendezvous.

    The trainer uses it for control only; my_trainer.py also sends tensors through it.
    """
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1,
                                timeout=timeout)
        return
    missing = [name for name in RENDEZVOUS if name not in os.environ]
    if missing:
        raise UserError(f"RANK is set but {', '.join(missing)} is not: start the ranks with "
                        "torchrun, which sets all of them")
    try:
        dist.init_process_group(backend, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        from minimegatron.failures import rendezvous_error

        raise UserError(rendezvous_error(config, str(error))) from error


def require_one_kind(device: Device) -> None:
    """Raise UserError, on all ranks, if --device auto chose different kinds of device."""
    kinds = [""] * dist.get_world_size()
    dist.all_gather_object(kinds, device.kind)
    other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise UserError(f"--device auto means {kinds[0]} on rank 0 and {kinds[other]} on rank "
                        f"{other}, which cannot communicate; nearest: --device cpu")


def cap_threads(ctx: Context) -> None:
    """Limit this rank's threads to its share of the machine's cores; every rank must call it.

    Several nodes may be one machine (network namespaces, containers), so machines are identified by
    their boot ID instead of their host name.
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    machine = boot_id.read_text() if boot_id.exists() else socket.gethostname()
    cores = os.sched_getaffinity(0)
    affinities: list[tuple] = [()] * ctx.grid.world_size
    dist.all_gather_object(affinities, (machine, cores))
    # A launcher may have bound every rank to cores of its own, which it does not share.
    ranks = sum(name == machine and not cores.isdisjoint(theirs) for name, theirs in affinities)
    requested = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(requested) if requested.isdigit() else torch.get_num_threads()
    fair = max(1, len(cores) // ranks)
    torch.set_num_threads(min(threads, fair))
    if threads > fair:
        ctx.print_rank_0(f"using {fair} thread(s) per rank instead of {threads}: "
                         f"{ranks} rank(s) share this machine's {len(cores)} cores")
