"""Parallelism by hand: a ring all-reduce, DDP that overlaps, and tensor parallelism."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def ring():
    """All-reduce as 2 (n - 1) steps around a ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(40.0 * size, device="cuda") * (rank + 1)
    expected = x.clone()
    dist.all_reduce(expected)
    parts = list(x.chunk(size))
    for step in range(2 * (size - 1)):
        reducing = step < size - 1
        give = (rank - step) % size if reducing else (rank - step + size) % size
        take = (give - 1) % size
        if not reducing:
            give, take = (rank - step + size) % size, (rank - step + size - 1) % size
        incoming = torch.empty_like(parts[take])
        requests = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, parts[give].contiguous(), (rank + 1) % size),
            dist.P2POp(dist.irecv, incoming, (rank - 1) % size)])
        for request in requests:
            request.wait()
        if reducing:
            parts[take].add_(incoming)
        else:
            parts[take].copy_(incoming)
    print(rank, torch.equal(x, expected))


def overlapped():
    """Gradients are all-reduced from hooks while the backward pass goes on."""
    times = {}
    for overlap in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
        pending = []

        def reduce(parameter, pending=pending):
            pending.append(dist.all_reduce(parameter.grad, async_op=True))

        if overlap:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(reduce)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(torch.randn(8192, 2048, device="cuda")).square().mean().backward()
        if not overlap:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        for work in pending:
            work.wait()
        torch.cuda.synchronize()
        times[overlap] = 1e3 * (time.perf_counter() - begin)
    print(dist.get_rank(), times[True] < times[False])


class Copy(torch.autograd.Function):
    """Identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    """All-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def tensor():
    """A column-parallel, then a row-parallel layer equal the two whole ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    first, second, x = torch.randn(64, 32), torch.randn(32, 64), torch.randn(5, 32)
    whole = (x @ first.T).relu() @ second.T
    a = first.chunk(size)[rank].cuda().requires_grad_()
    b = second.chunk(size, 1)[rank].cuda().requires_grad_()
    y = Reduce.apply((Copy.apply(x.cuda()) @ a.T).relu() @ b.T)
    y.sum().backward()
    print(rank, torch.allclose(y.cpu(), whole, atol=1e-4), a.grad.shape == a.shape)


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
globals()[sys.argv[1]]()
dist.destroy_process_group()
