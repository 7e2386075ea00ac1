"""Process groups of programs that ask for NCCL: they get virtual ones, and see NCCL's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from virtualgpu.net import backend, group
from virtualgpu.net.topology import Topology
from virtualgpu.pytorch import functional_collectives
from virtualgpu.pytorch.mode import CudaGpu

NCCL_TIMEOUT = timedelta(minutes=10)  # torch's default
ON_CUDA = {"nccl", "undefined", "cuda:nccl", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"}


def install(gpu: CudaGpu, topology: Topology, present: Sequence[int] | None = None,
            store: dist.Store | None = None) -> None:
    """Let torch.distributed connect virtual GPUs.

    Args:
        gpu: this process's.
        topology: of the whole job.
        present: the ranks that are processes; the others are symmetric to them. None: all.
        store: where the present ranks meet, if some are not; a rendezvous would wait for them.
    """
    gpu.handlers.update(functional_collectives.handlers())
    backend.register(gpu, topology, present=present)
    everywhere("is_nccl_available", lambda: True)
    distributed_c10d.default_pg_nccl_timeout = NCCL_TIMEOUT
    distributed_c10d._new_process_group_helper = named_nccl(
        distributed_c10d._new_process_group_helper)
    everywhere("split_group", split_group)
    for module in (torch.cuda, torch.accelerator):
        module.synchronize = settled(module.synchronize)
    if present is not None:
        gpu.assumptions.note("ranks that are not present do what the nearest present rank below "
                             "them does, at the same time")
        distributed_c10d.rendezvous = at_once(store or dist.HashStore(), len(topology.nodes))


def settled(synchronize: Callable) -> Callable:
    """Let the host wait for collectives as well that nobody waited for."""
    def wait(device: object = None) -> None:
        backend.settle()
        synchronize(device)
    return wait


def everywhere(name: str, function: Callable) -> None:
    """Replace a function of torch.distributed in all modules that have it by name."""
    for module in (distributed_c10d, dist, device_mesh):
        if hasattr(module, name):
            setattr(module, name, function)


def named_nccl(helper: Callable) -> Callable:
    """Wrap torch's function that makes process groups."""
    def make(group_size, group_rank, ranks, name, *args, **kwargs):
        if str(name) not in ON_CUDA:
            return helper(group_size, group_rank, ranks, name, *args, **kwargs)
        kwargs.pop("device_id", None)  # NCCL would connect at once; there is nothing to connect
        made, store = helper(group_size, group_rank, ranks, dist.Backend(group.BACKEND), *args,
                             **kwargs)
        if isinstance(made, group.VirtualGroup):
            world = distributed_c10d._world
            made.serves_cpu = "cpu" in str(name) or str(name) == "undefined"
            world.pg_map[made] = dist.Backend("nccl"), world.pg_map[made][1]
        return made, store
    return make


def at_once(store: dist.Store, world: int) -> Callable:
    """Return a rendezvous that waits for nobody.

    Args:
        store: that it returns.
        world: how many ranks the job has.
    """
    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **_: object):
        rank = int(os.environ["RANK"]) if rank < 0 else rank
        yield store, rank, world if world_size < 0 else world_size
    return rendezvous


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None,
                backend=None):
    """torch.distributed.split_group, which torch has for NCCL alone."""
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    parent = parent_pg or distributed_c10d._get_default_group()
    everyone = distributed_c10d.get_process_group_ranks(parent)
    for members in split_ranks:
        if parent.rank() in members:
            return dist.new_group([everyone[rank] for rank in sorted(members)], timeout,
                                  backend or "nccl", use_local_synchronization=True,
                                  group_desc=group_desc)
    return None


