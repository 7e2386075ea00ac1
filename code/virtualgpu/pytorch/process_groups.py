"""Give programs that request NCCL virtual process groups under NCCL's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from virtualgpu.net import backend
from virtualgpu.net.communicator import BACKEND
from virtualgpu.net.group import VirtualGroup
from virtualgpu.net.nccl_backend import NO_EFFECT, Options, ProcessGroupNCCL
from virtualgpu.net.topology import Topology
from virtualgpu.pytorch import cuda_builds, functional_collectives
from virtualgpu.pytorch.mode import CudaGpu

NCCL_TIMEOUT = timedelta(minutes=10)  # torch's default
GLOO = {"gloo", "cpu:gloo"}
ON_CUDA = {"nccl", "undefined", "cuda:nccl", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"}


def install(gpu: CudaGpu, topology: Topology, present: Sequence[int] | None = None,
            store: dist.Store | None = None) -> None:
    """Connect virtual GPUs through torch.distributed.

    Args:
        gpu: this process's GPU.
        topology: the whole job's GPUs and links.
        present: the ranks that are processes; the others are symmetric to them. None for all ranks.
        store: the present ranks' store, if some are absent; a rendezvous would wait for those.
    """
    gpu.handlers.update(functional_collectives.handlers())
    backend.register(gpu, topology, present=present)
    everywhere("is_nccl_available", lambda: True)
    for module in (distributed_c10d, dist, torch._C._distributed_c10d):
        module.ProcessGroupNCCL = ProcessGroupNCCL
    setattr(torch._C._distributed_c10d, "__getattr__", missing)  # noqa: B010  a module has none
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


def missing(name: str) -> NoReturn:
    """Refuse NCCL's functions of torch._C._distributed_c10d, which this build lacks, by name."""
    if "nccl" in name.lower():
        cuda_builds.refuse_c(f"_distributed_c10d.{name}")
    raise AttributeError(f"module 'torch._C._distributed_c10d' has no attribute {name!r}")


def settled(synchronize: Callable) -> Callable:
    """Wrap synchronize so that it also waits for collectives that the program did not wait for."""
    def wait(device: object = None) -> None:
        backend.settle_groups()
        synchronize(device)
    return wait


def everywhere(name: str, function: Callable) -> None:
    """Replace a function of torch.distributed in all modules that have it by name."""
    for module in (distributed_c10d, dist, device_mesh):
        if hasattr(module, name):
            setattr(module, name, function)


def named(helper: Callable, virtual: set[str]) -> Callable:
    """Wrap torch's function that creates process groups.

    Args:
        helper: that function.
        virtual: backends that virtual groups replace. They include Gloo if some ranks are absent,
            since Gloo would wait for those.
    """
    def make(group_size, group_rank, ranks, name, *args, **kwargs):
        if str(name) not in virtual:
            return helper(group_size, group_rank, ranks, name, *args, **kwargs)
        kwargs.pop("device_id", None)  # with which NCCL would connect immediately
        group, store = helper(group_size, group_rank, ranks, dist.Backend(BACKEND), *args,
                              **kwargs)
        if isinstance(group, VirtualGroup):
            world, gloo = distributed_c10d._world, str(name) in GLOO
            group.serves_cpu = "cpu" in str(name) or str(name) == "undefined" or gloo
            group.serves_gpu = not gloo
            options = next((one for one in (*args, *kwargs.values()) if isinstance(one, Options)),
                           None)
            if options is not None:
                group.nccl.options = options
                group.gpu.assumptions.note(NO_EFFECT)
            world.pg_map[group] = dist.Backend("gloo" if gloo else "nccl"), world.pg_map[group][1]
        return group, store
    return make


def represented(broadcast: Callable) -> Callable:
    """Wrap broadcast_object_list so that the representative of an absent source broadcasts.

    Otherwise the receivers would read uninitialized memory.
    """
    def from_present(object_list, src=None, group=None, device=None, group_src=None):
        target = group or distributed_c10d._get_default_group()
        if isinstance(target, VirtualGroup):
            source = distributed_c10d._canonicalize_group_rank(
                target, 0 if src is None and group_src is None else src, group_src)
            src, group_src = None, target.messenger.stands_for[source]
            if group_src != source:
                target.assume("broadcast_object_list")
        return broadcast(object_list, src, group, device, group_src)
    return from_present


def at_once(store: dist.Store, world: int) -> Callable:
    """Return a rendezvous that waits for no other rank.

    Args:
        store: the store that it returns.
        world: number of ranks in the job.
    """
    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **_: object):
        rank = int(os.environ["RANK"]) if rank < 0 else rank
        yield store, rank, world if world_size < 0 else world_size
    return rendezvous


def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None,
                backend=None):
    """Replace torch.distributed.split_group, which torch implements for NCCL only."""
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


