"""FSDP1, FSDP2, DTensor, device meshes, ZeroRedundancyOptimizer."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH = 1024


def network(layers=4):
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                         nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)])


def train(model, steps=2, device="cuda", **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    levels = set()
    for _ in range(steps):
        loss = model(torch.randn(128, WIDTH, device=device)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        levels.add(torch.cuda.memory_allocated())
    assert len(levels) == 1, levels  # a step leaves nothing behind
    return loss


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        network(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=LOCAL,
        mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        loss = model(torch.randn(128, WIDTH, device="cuda")).square().mean()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(loss, torch.cuda.max_memory_allocated() // 2**20)


def fsdp2(mesh=None, **options):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device("meta"):
        model = network()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy, **options)
    fully_shard(model, mesh=mesh, mp_policy=policy, **options)
    model.to_empty(device="cpu" if options else "cuda")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    print(train(model), torch.cuda.max_memory_allocated() // 2**20)


def hsdp():
    fsdp2(init_device_mesh("cuda", (2, dist.get_world_size() // 2),
                           mesh_dim_names=("replicate", "shard")))


def offload():
    from torch.distributed.fsdp import CPUOffloadPolicy

    fsdp2(None, offload_policy=CPUOffloadPolicy())


def dtensor():
    """Tensor and sequence parallelism from a plan."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return self.down(torch.relu(self.up(self.norm(x))))

    model = Block().cuda()
    parallelize_module(model, mesh, {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate())})
    size = dist.get_world_size()
    loss = model(torch.randn(2, 64 // size, WIDTH, device="cuda")).square().mean()
    loss.backward()
    print(tuple(model.up.weight.to_local().shape), torch.cuda.memory_allocated() // 2**20)


def meshes():
    """FSDP2 over the first dimensions, tensor parallelism over the last."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (2, 2, dist.get_world_size() // 4),
                            mesh_dim_names=("replicate", "shard", "tensor"))
    model = network(1).cuda()
    for block in model:
        parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["replicate", "shard"])
    fully_shard(model, mesh=mesh["replicate", "shard"])
    print(train(model, fused=True), tuple(model[0][0].weight.to_local().shape))


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(network(2).cuda(), device_ids=[LOCAL])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for _ in range(2):
        model(torch.randn(64, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated() // 2**20)


def pipelining():
    """Every schedule of torch.distributed.pipelining."""
    from torch.distributed.pipelining import PipelineStage, schedules

    rank, size = dist.get_rank(), dist.get_world_size()
    for name in ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS",
                 "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        kind = getattr(schedules, name)
        single = name in ("ScheduleGPipe", "Schedule1F1B")
        vee = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
        at = [rank] if single else [rank, 2 * size - 1 - rank] if vee else [rank, size + rank]
        stages = [PipelineStage(nn.Linear(WIDTH, WIDTH).cuda(), index, size * len(at),
                                torch.device("cuda", LOCAL)) for index in at]
        schedule = kind(stages[0] if single else stages, 8,
                        loss_fn=lambda y, target: (y - target).square().mean())
        x = torch.randn(64, WIDTH, device="cuda")
        last = size * len(at) - 1
        losses = []
        given = [x] if 0 in at else []
        schedule.step(*given, **({"target": torch.randn(64, WIDTH, device="cuda"),
                                  "losses": losses} if last in at else {}))
        print(name, rank, len(losses))


def context():
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    x = torch.randn(2, 64, 256, 64, device="cuda", dtype=torch.bfloat16)
    scale = torch.ones(64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with context_parallel(mesh, buffers=(x,), buffer_seq_dims=(2,)):
        y = nn.functional.scaled_dot_product_attention(x * scale, x, x, is_causal=True)
        y.sum().backward()
    print(tuple(y.shape), tuple(scale.grad.shape))


LOCAL = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(LOCAL)
dist.init_process_group("cpu:gloo,cuda:nccl" if sys.argv[1] == "offload" else "nccl")
globals()[sys.argv[1]]()
dist.destroy_process_group()
