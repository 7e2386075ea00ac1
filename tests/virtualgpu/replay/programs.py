"""Programs that run on virtual GPUs, with a record: each is a function without arguments."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 512
ROWS = 64


def join() -> int:
    dist.init_process_group("nccl")
    return dist.get_rank()


def mlp(layers: int = 3) -> nn.Sequential:
    return nn.Sequential(*[part for _ in range(layers)
                           for part in (nn.Linear(WIDTH, WIDTH, device="cuda"), nn.GELU())])


def streams() -> None:
    """One GPU: two streams that wait for each other, a read, a refused allocation, and a sleep."""
    import time

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    for step in range(2):
        x = torch.randn(ROWS, WIDTH).cuda()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            extra = x @ x.T
            done = side.record_event()
        loss = model(x).square().mean()
        torch.cuda.current_stream().wait_event(done)
        (loss + extra.mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        time.sleep(0.001 * step)
        try:
            torch.empty(10**12, device="cuda")
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        side.synchronize()
    x.cpu()


def ddp() -> None:
    """Gradients are all-reduced while the backward pass goes on."""
    join()
    model = DistributedDataParallel(mlp(4), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(ROWS, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


def pipeline() -> None:
    """Stages on ranks in a row: activations go forward, gradients come back; asynchronous sends."""
    rank = join()
    last, stage, sent = dist.get_world_size() - 1, mlp(2), []
    held = []
    for _ in range(4):
        x = torch.empty(ROWS, WIDTH, device="cuda", requires_grad=True)
        if rank:
            dist.recv(x.data, rank - 1)
        y = stage(x)
        held.append((x, y))
        if rank < last:
            sent.append(dist.isend(y.detach(), rank + 1))
    for x, y in held:
        if rank < last:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.square().mean().backward()
        if rank:
            sent.append(dist.isend(x.grad, rank - 1))
    for work in sent:
        work.wait()


def collectives() -> None:
    """Parameters are gathered ahead on a stream of their own, and gradients are reduced and
    scattered; and all that torch.distributed has besides."""
    rank, world = join(), dist.get_world_size()
    shards = [torch.randn(WIDTH // world, WIDTH, device="cuda") for _ in range(3)]
    ahead, works = torch.cuda.Stream(), []
    with torch.cuda.stream(ahead):
        for shard in shards:
            whole = torch.empty(WIDTH, WIDTH, device="cuda")
            works.append((whole, dist.all_gather_into_tensor(whole, shard, async_op=True)))
    x = torch.randn(ROWS, WIDTH, device="cuda")
    for shard, (whole, work) in zip(shards, works, strict=True):
        with torch.cuda.stream(ahead):
            work.wait()
        torch.cuda.current_stream().wait_stream(ahead)
        x = x @ whole
        dist.reduce_scatter_tensor(shard, whole)
    parts = list(x.chunk(world))
    dist.broadcast(x, 0)
    dist.reduce(x, 1)
    dist.all_to_all_single(torch.empty_like(x), x)
    dist.gather(parts[0], [torch.empty_like(part) for part in parts] if rank == 0 else None)
    dist.scatter(torch.empty_like(parts[0]), parts if rank == 0 else None)
    dist.all_gather([torch.empty_like(part) for part in parts], parts[rank])
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=pair)
        torch.cuda.synchronize()
    dist.barrier()


def sharded() -> None:
    """FSDP2: all-gathers and reduce-scatters on streams of their own, with events between them."""
    from torch.distributed.fsdp import fully_shard

    join()
    model = mlp(3)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    model(torch.randn(ROWS, WIDTH, device="cuda")).square().mean().backward()
