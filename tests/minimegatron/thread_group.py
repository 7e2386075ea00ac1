"""A tensor-parallel group whose ranks are threads: any size in one process, in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.grid import GROUPS, Grid, Group

SECONDS = 30  # a rank that never comes is a failure, not a hang


class TensorExchange:
    """Lets the threads of one group exchange tensors."""

    def __init__(self, size: int) -> None:
        self.barrier, self.slots = threading.Barrier(size), [None] * size

    def swap(self, index: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.slots[index] = tensor.detach().clone()
        self.barrier.wait(SECONDS)
        got = list(self.slots)
        self.barrier.wait(SECONDS)
        return got


@dataclass(frozen=True)
class ThreadGroup(Group):
    """The collectives of grid.Group, written apart from torch.distributed."""

    exchange: TensorExchange | None = None

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp = dist.ReduceOp.SUM) -> None:
        stacked = torch.stack(self.exchange.swap(self.index, tensor))
        result = stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.sum(0)
        with torch.no_grad():
            tensor.copy_(result)

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.exchange.swap(self.index, part))

    def reduce_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        total = torch.stack(self.exchange.swap(self.index, whole)).sum(0)
        return total.chunk(self.size)[self.index]

    def start_all_gather(self, whole: torch.Tensor, part: torch.Tensor) -> Done:
        whole.copy_(self.all_gather(part))
        return Done()

    def start_reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> Done:
        part.copy_(self.reduce_scatter(whole))
        return Done()

    def start_exchange(self, sent: torch.Tensor, received: torch.Tensor) -> list[Done]:
        received.copy_(self.exchange.swap(self.index, sent)[self.index - 1])
        return [Done()]


class Done:
    """The work of a collective that has ended."""

    def wait(self) -> None:
        return


def on_ranks(ctx: Context, size: int, work: Callable[[Context], Any]) -> list[Any]:
    """work(ctx of the rank) on `size` tensor-parallel ranks; returns their results in order."""
    exchange, results, errors = TensorExchange(size), [None] * size, []
    config = replace(ctx.config, tensor_model_parallel_size=size)

    def rank(index: int) -> None:
        tp = ThreadGroup(tuple(range(size)), index, None, exchange)
        alone = Group((index,), 0, None)
        try:
            groups = dict.fromkeys(GROUPS, alone) | {"tp": tp, "model": tp}
            results[index] = work(replace(ctx, config=config, grid=Grid(index, size, **groups)))
        except Exception as error:
            errors.append(error)
            exchange.barrier.abort()

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)] or errors
    if first:
        raise first[0]
    return results
