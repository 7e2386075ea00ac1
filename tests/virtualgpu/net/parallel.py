"""Training steps under every kind of parallelism, for ranks that believe in CUDA and NCCL."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from virtualgpu.net.backend import check_complete
from virtualgpu.net.collectives import COSTS

from .programs import become

WIDTH, RANKS = 512, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


def network(layers=3):
    with torch.device("cuda"):
        return nn.Sequential(*[Block() for _ in range(layers)])


def step(model, x, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def data(*shape):
    return torch.randn(*(shape or (64, WIDTH)), device="cuda")


def ddp():
    step(DistributedDataParallel(network(), bucket_cap_mb=4), data())


def zero():
    """Four equal layers, so that every rank has as much to update."""
    model = DistributedDataParallel(network(RANKS))
    # Imported here: all of torch.distributed.optim is deprecated TorchScript.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    step(model, data(), ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


def fsdp1():
    step(FullyShardedDataParallel(network(), auto_wrap_policy=ModuleWrapPolicy({Block}),
                                  device_id=torch.device("cuda", torch.cuda.current_device())),
         data())


def fsdp2(mesh=None):
    model = network()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for part in (*model, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    step(model, data())


def hsdp():
    fsdp2(init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard")))


def tensor_parallel(mesh=None, model=None):
    mesh = mesh or init_device_mesh("cuda", (RANKS,))
    model = model or network()
    for block in model:
        parallelize_module(block, mesh, {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0))})
    return model


def tensor_and_sequence():
    step(tensor_parallel(), data())


def two_dimensions():
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "tensor"))
    model = tensor_parallel(mesh["tensor"])
    for part in (*model, model):
        fully_shard(part, mesh=mesh["data"])
    step(model, data())


def resharded():
    """A DTensor whose sharded dimension changes, which is an all-to-all."""
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cuda", (RANKS,))
    x = distribute_tensor(data(), mesh, [Shard(0)])
    assert x.redistribute(mesh, [Shard(1)]).to_local().shape == (64, WIDTH // RANKS)
    assert x.redistribute(mesh, [Replicate()]).to_local().shape == (64, WIDTH)


SYMMETRIC = (ddp, zero, fsdp1, fsdp2, hsdp, tensor_and_sequence, two_dimensions, resharded)


def measured(gpu, programs):
    """Return each program's seconds, exposed seconds, bytes that it takes at the peak, and seconds
    of each collective, by the program's name."""
    collected = {}
    gc.disable()  # or it would free what an earlier program has left
    for program in programs:
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, exposed, before = gpu.clock.host, gpu.exposed, dict(gpu.busy)
        held = torch.cuda.memory_allocated()
        program()
        torch.cuda.synchronize()
        collectives = {name: seconds - before.get(name, 0.0) for name, seconds in gpu.busy.items()
                       if name in COSTS and seconds > before.get(name, 0.0)}
        collected[program.__name__] = (gpu.clock.host - start, gpu.exposed - exposed,
                                       torch.cuda.max_memory_allocated() - held, collectives)
    check_complete()
    return collected


def symmetric(present):
    """Rank 0 stands for all, or every rank is there."""
    os.environ.setdefault("RANK", "0")
    gpu = become("h100", present, RANKS)
    dist.init_process_group("nccl")
    return measured(gpu, SYMMETRIC)


def books(present):
    """{functional collective: MiB of its result while it runs, after the wait, and when dropped}"""
    from torch.distributed import _functional_collectives as functional

    become("h100", present, RANKS)
    dist.init_process_group("nccl")
    x, group, actual = torch.empty(2**20, device="cuda"), dist.group.WORLD, {}
    dist.all_reduce(x)
    start = torch.cuda.memory_allocated()
    for name, call in {
            "all_gather": lambda: functional.all_gather_tensor(x, 0, group),
            "reduce_scatter": lambda: functional.reduce_scatter_tensor(x, "sum", 0, group),
            "all_reduce": lambda: functional.all_reduce(x, "sum", group),
            "all_to_all": lambda: functional.all_to_all_single(x, None, None, group),
            "broadcast": lambda: functional.broadcast(x, 0, group)}.items():
        levels = []
        result = call()
        levels.append(torch.cuda.memory_allocated() - start)
        result = functional.wait_tensor(result)
        levels.append(torch.cuda.memory_allocated() - start)
        del result
        levels.append(torch.cuda.memory_allocated() - start)
        actual[name] = [level / 2**20 for level in levels]
    for _ in range(2):
        used = functional.all_gather_tensor(x, 0, group) + 1
        del used
    actual["left to itself"] = torch.cuda.memory_allocated() - start
    return actual


def pipeline():
    """Two stages of two replicas each: ranks 0 and 1 have the first."""
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("stage", "data"))
    at, group = mesh["stage"].get_local_rank(), mesh["stage"].get_group()
    model = network(2 if at else 3)
    for part in (*model, model):
        fully_shard(part, mesh=mesh["data"])
    stage = PipelineStage(model, at, 2, torch.device("cuda", torch.cuda.current_device()),
                          group=group)
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, target: (y - target).square().mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        schedule.step(*([data()] if at == 0 else []), **({"target": data()} if at else {}))
        optimizer.step()
        optimizer.zero_grad()


def stages(present):
    gpu = become("h100", present, RANKS)
    dist.init_process_group("nccl")
    return measured(gpu, [pipeline])


def one_stage_each(port):
    """Ranks 0 and 2 stand for two ranks each."""
    rank = 2 * int(os.environ["RANK"])
    store = dist.PrefixStore("present", dist.TCPStore("127.0.0.1", port, is_master=False))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    gpu = become("h100", [0, 2], RANKS, store=store)
    dist.init_process_group("nccl")
    return measured(gpu, [pipeline])
