"""Process groups of programs that ask for NCCL: they get virtual ones, and see NCCL's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from virtualgpu.net import backend
from virtualgpu.net.group import BACKEND, VirtualGroup
from virtualgpu.net.topology import Topology
from virtualgpu.pytorch import functional_collectives
from virtualgpu.pytorch.mode import CudaGpu

NCCL_TIMEOUT = timedelta(minutes=10)  # torch's default
GLOO = {"gloo", "cpu:gloo"}
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
    distributed_c10d._new_process_group_helper = named(
        distributed_c10d._new_process_group_helper, ON_CUDA if present is None else ON_CUDA | GLOO)
    everywhere("split_group", split_group)
    for module in (torch.cuda, torch.accelerator):
        module.synchronize = settled(module.synchronize)
    if present is not None:
        gpu.assumptions.note("ranks that are not present do what the nearest present rank below "
                             "them does, at the same time")
        everywhere("broadcast_object_list", represented(dist.broadcast_object_list))
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


def named(helper: Callable, virtual: set[str]) -> Callable:
    """Wrap torch's function that makes process groups.

    Args:
        helper: that function.
        virtual: backends in whose place virtual groups serve, under their names. Gloo's is one of
            them if not all ranks are present, since Gloo would wait for the others.
    """
    def make(group_size, group_rank, ranks, name, *args, **kwargs):
        if str(name) not in virtual:
            return helper(group_size, group_rank, ranks, name, *args, **kwargs)
        kwargs.pop("device_id", None)  # NCCL would connect at once; there is nothing to connect
        made, store = helper(group_size, group_rank, ranks, dist.Backend(BACKEND), *args,
                             **kwargs)
        if isinstance(made, VirtualGroup):
            world, gloo = distributed_c10d._world, str(name) in GLOO
            made.serves_cpu = "cpu" in str(name) or str(name) == "undefined" or gloo
            made.serves_gpu = not gloo
            world.pg_map[made] = dist.Backend("gloo" if gloo else "nccl"), world.pg_map[made][1]
        return made, store
    return make


def represented(broadcast: Callable) -> Callable:
    """Let the rank that stands for an absent source broadcast its own objects: torch would leave
    the receivers with memory that nobody has written."""
    def from_present(object_list, src=None, group=None, device=None, group_src=None):
        given = group or distributed_c10d._get_default_group()
        if isinstance(given, VirtualGroup):
            source = distributed_c10d._canonicalize_group_rank(
                given, 0 if src is None and group_src is None else src, group_src)
            src, group_src = None, given.wire.stands_for[source]
            if group_src != source:
                given.assume("broadcast_object_list")
        return broadcast(object_list, src, group, device, group_src)
    return from_present


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


