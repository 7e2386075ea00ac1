"""Programs for ranks that believe in CUDA and NCCL; some run on gloo as well, to compare values."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from virtualgpu.core.cards import find
from virtualgpu.net import network
from virtualgpu.net.backend import check_complete
from virtualgpu.net.topology import Topology
from virtualgpu.pytorch import facade, fsdp1, process_groups
from virtualgpu.pytorch.mode import CudaGpu


def become(card="v100-sxm2-16gb", present=None, world=None, per_node=4, store=None):
    """Give this process a virtual GPU, and return it."""
    world = world or int(os.environ["WORLD_SIZE"])
    gpu = CudaGpu(find(card), int(os.environ.get("LOCAL_RANK", 0)), per_node)
    nodes = tuple(str(rank // per_node) for rank in range(world))
    topology = Topology(nodes, (gpu.card,) * world, network.parse("ethernet:10gbit"))
    facade.install(gpu)
    process_groups.install(gpu, topology, present, store)
    fsdp1.install()
    return gpu


def on_gpus(program):
    """Run a program on virtual GPUs, then on CPU tensors of the same process group."""
    become()
    dist.init_process_group("cpu:gloo,cuda:nccl")
    result = program("cuda"), program("cpu")
    beyond = beyond_gloo("cuda"), beyond_gloo("cpu")
    check_complete()
    return result, beyond


def on_cpu(program):
    return program("cpu")


def numbers(device, *shape, start=0):
    """Small whole numbers that differ on every rank."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 5 + 1 + dist.get_rank() + start).float().view(shape).to(device)


def every_collective(device):
    """Every collective of torch.distributed with known values. Returns the results."""
    rank, size = dist.get_rank(), dist.get_world_size()
    out = {}
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        x = numbers(device, 2, 3)
        dist.all_reduce(x, op)
        out[f"all_reduce {op}"] = x
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        x = numbers(device, 6).long()
        dist.all_reduce(x, op)
        out[f"all_reduce {op}"] = x
    x = numbers(device, 6)
    part = x[2:4]
    dist.all_reduce(part)
    out["all_reduce of a view"] = x
    pieces = [torch.empty(2, 3, device=device) for _ in range(size)]
    dist.all_gather(pieces, numbers(device, 2, 3))
    out["all_gather"] = torch.stack(pieces)
    whole = torch.empty(2 * size, 3, device=device)
    dist.all_gather_into_tensor(whole, numbers(device, 2, 3))
    out["all_gather_into_tensor"] = whole
    mine = torch.empty(2, 3, device=device)
    dist.reduce_scatter(mine, [numbers(device, 2, 3, start=at) for at in range(size)])
    out["reduce_scatter"] = mine
    mine = torch.empty(3, device=device)
    dist.reduce_scatter_tensor(mine, numbers(device, 3 * size))
    out["reduce_scatter_tensor"] = mine
    x = numbers(device, 4)
    dist.reduce(x, 1)
    out["reduce"] = x if rank == 1 else torch.zeros(4)
    x = numbers(device, 4)
    dist.broadcast(x, 2)
    out["broadcast"] = x
    pieces = [torch.empty(3, device=device) for _ in range(size)] if rank == 3 else None
    dist.gather(numbers(device, 3), pieces, 3)
    out["gather"] = torch.stack(pieces) if pieces else torch.zeros(3)
    mine = torch.empty(3, device=device)
    dist.scatter(mine, [numbers(device, 3, start=at) for at in range(size)] if rank == 1 else None,
                 1)
    out["scatter"] = mine
    dist.barrier()
    return {name: item.tolist() for name, item in {**out, **exchanges(device)}.items()}


def exchanges(device):
    """All-to-all in all forms, and point-to-point messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    out = {}
    whole = torch.empty(2 * size, device=device)
    dist.all_to_all_single(whole, numbers(device, 2 * size))
    out["all_to_all_single"] = whole
    sent = [(rank + to) % 3 for to in range(size)]
    taken = [(source + rank) % 3 for source in range(size)]
    whole = torch.empty(sum(taken), 2, device=device)
    dist.all_to_all_single(whole, numbers(device, sum(sent), 2), taken, sent)
    out["uneven all_to_all_single"] = whole
    after, before = (rank + 1) % size, (rank - 1) % size
    mine = torch.empty(5, device=device)
    works = [dist.isend(numbers(device, 5), after), dist.irecv(mine, before)]
    for work in works:
        work.wait()
    out["isend"] = mine
    other = torch.empty(2, 2, device=device)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, other, after),
                                        dist.P2POp(dist.isend, numbers(device, 2, 2), before)]):
        work.wait()
    out["batch_isend_irecv"] = other
    x = torch.zeros(3, device=device)
    if rank % 2:
        dist.recv(x, rank - 1)
    else:
        dist.send(numbers(device, 3), rank + 1)
    out["send"] = x
    return {**out, **groups(device)}


def beyond_gloo(device):
    """Operations that gloo lacks: averages, scaled sums, and all-to-all of lists."""
    rank, size = dist.get_rank(), dist.get_world_size()
    average, scaled = numbers(device, 3), numbers(device, 3)
    dist.all_reduce(average, ReduceOp.AVG)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    taken = [torch.empty(source + 1, device=device) for source in range(size)]
    dist.all_to_all(taken, [torch.full((rank + 1,), 10.0 * rank + to, device=device)
                            for to in range(size)])
    return average.tolist(), scaled.tolist(), [item.tolist() for item in taken]


def groups(device):
    """Subgroups, objects, and works that are waited for late."""
    rank = dist.get_rank()
    halves = [dist.new_group(ranks, backend=None if device == "cuda" else "gloo")
              for ranks in ([0, 2], [1, 3])]
    half = halves[rank % 2]
    if device == "cuda":  # torch splits NCCL's groups only
        half = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    x = numbers(device, 3)
    dist.all_reduce(x, group=half)
    together = [numbers(device, 2, start=at) for at in range(3)]
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for one in together:
            dist.all_reduce(one)
    coalesced.wait()
    works, parts = [], [numbers(device, 2, start=at) for at in range(3)]
    for part in parts:
        works.append(dist.all_reduce(part, async_op=True))
    for work in reversed(works):
        work.wait()
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": rank})
    told = [f"from {rank}", None]
    dist.broadcast_object_list(told, 3)
    mine = [None]
    dist.scatter_object_list(mine, list("abcd") if rank == 0 else None, 0)
    future = dist.all_reduce(numbers(device, 2), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    doubled.wait()
    return {"subgroup": x, "coalesced": torch.stack(together), "async": torch.stack(parts),
            "future": doubled.value(), "objects": Listed([objects, told, mine])}


class Listed(list):
    def tolist(self):
        return list(self)
