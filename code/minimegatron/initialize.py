"""Set up a rank: folders, rendezvous, device, process groups, and threads."""

from __future__ import annotations

import os
import socket
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.device.device import CpuDevice
from minimegatron.errors import UserError
from minimegatron.grid import axis_sizes, make_grid
from virtualgpu.core.slots import INSTEAD_OF_CPU

if TYPE_CHECKING:
    from minimegatron.device.device import Device


def initialize(config: Config) -> Context:
    """Join the job's process group and build the Context. Raises UserError."""
    if any((config.save, config.tensorboard_dir, config.timeline, config.metrics)):
        create_folders(config)
    timeout = timedelta(minutes=config.distributed_timeout_minutes)
    join(config, timeout)
    local_rank = int(os.environ.get("LOCAL_RANK", config.local_rank or 0))
    device, notes = choose_device(config, local_rank)
    if config.device == "auto":
        from minimegatron.device.gpus import require_one_kind

        require_one_kind(device)
    notes += device.connect()
    grid = make_grid(axis_sizes(config), device.backend, timeout)
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
    try:
        dist.init_process_group(backend, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        from minimegatron.failures import rendezvous_error

        raise UserError(rendezvous_error(config, str(error))) from error


def choose_device(config: Config, local_rank: int) -> tuple[Device, list[str]]:
    """Return the device for --device, and lines for the log that explain the choice.

    Raises UserError if the machine has no such device for this local rank.
    """
    if config.device != "cpu" or os.environ.get(INSTEAD_OF_CPU):
        from minimegatron.device.gpus import choose_gpu

        gpu, notes = choose_gpu(config, local_rank)
        if gpu is not None:
            return gpu, notes
    if config.distributed_backend == "nccl":
        return CpuDevice(), ["--distributed-backend nccl needs GPUs: on the CPU gloo is used "
                             "instead"]
    return CpuDevice(), []


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


def create_folders(config: Config) -> None:
    """Create the folders that the run writes to. Raises UserError if one is not writable."""
    for flag, folder in (("--save", config.save), ("--tensorboard-dir", config.tensorboard_dir),
                         ("--timeline", config.timeline)):
        if folder is None:
            continue
        try:
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UserError(f"{flag} {folder} is not a folder that can be written to "
                            f"({error.strerror}); nearest: a folder under $LAB_HOME/megatron"
                            ) from error
    if config.metrics is not None:
        try:
            open(config.metrics, "ab").close()
        except OSError as error:
            raise UserError(f"--metrics {config.metrics} is not a file that can be written to "
                            f"({error.strerror}); nearest: --metrics metrics.jsonl") from error
