"""ZeRO stage 1, or the distributed optimizer (Rajbhandari et al. 2020): each of d replicas keeps
the optimizer states of 1/d of the parameters.

Each replica owns the d-th part of every bucket. Gradients are reduce-scattered, so that it receives
the sums of what it owns; it updates these parameters; and all parameters are all-gathered. Both
collectives together move as many bytes as one all-reduce.

Only --use-distributed-optimizer imports this file.
"""

from __future__ import annotations

import torch
from torch import nn

from minimegatron.context import Context
from minimegatron.grid import Grid, Group, groups_along
from minimegatron.parallel.ddp import DistributedDataParallel


class ShardedDataParallel(DistributedDataParallel):
    """Data parallelism with d replicas, each of which owns a shard of every bucket.

    The buffers are padded so that all shards of a bucket have the same size. With hybrid sharding,
    the d replicas are one of several instances of the optimizer.

    Attributes:
        outer: the ranks of other instances that own the same ranges; gradients are summed over
            these, too.
    """

    one_bucket_at_a_time = True  # a reduce-scatter needs memory for its result

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        self.fp8 = None
        if ctx.config.fp8_param_gather:
            from minimegatron.parallel.fp8_param_gather import Fp8ParamGather

            self.fp8 = Fp8ParamGather(ctx, model)
        super().__init__(ctx, model)
        self.shard_groups = [self.group]

    def _shard_group(self, ctx: Context) -> Group:
        group, self.outer = split_replicas(ctx.grid, ctx.config.num_distributed_optimizer_instances)
        self.alignment = group.size
        if self.fp8 is not None:
            self.fp8.group = group
        return group

    def _make_buckets(self, size: int) -> list[slice]:
        if self.fp8 is not None:
            return self.fp8.make_buckets(self.params.values(), size)
        return super()._make_buckets(size)

    def _owned_ranges(self) -> list[slice]:
        owned = []
        for bucket in self.buckets:
            size = (bucket.stop - bucket.start) // self.group.size
            start = bucket.start + self.group.index * size
            owned.append(slice(start, start + size))
        return owned

    def start_reduce(self, number: int) -> None:
        grads = self.grad_buffer[self.buckets[number]]
        total = grads.new_empty(grads.numel() // self.group.size)
        work = self.group.start_reduce_scatter(total, grads)
        self._in_flight.append((number, work, total))

    def _wait(self) -> None:
        for number, work, total in self._in_flight:
            work.wait()
            self.outer.all_reduce(total)
            self.grad_buffer[self.owned[number]] = total
        self._in_flight.clear()

    def copy_owned(self, buffer: torch.Tensor, out: torch.Tensor) -> None:
        if len(buffer) == len(out):
            out.copy_(buffer)
            return
        start = 0
        for owned in self.owned:
            end = start + owned.stop - owned.start
            out[start:end] = buffer[owned]
            start = end

    def all_gather(self, buffer: torch.Tensor) -> None:
        if self.fp8 is not None and buffer.dtype != torch.float32:  # no optimizer states
            self.fp8.all_gather(buffer, self.buckets, self.owned)
            return
        for bucket, owned in zip(self.buckets, self.owned, strict=True):
            buffer[bucket] = self.group.all_gather(buffer[owned])


def split_replicas(grid: Grid, instances: int) -> tuple[Group, Group]:
    """Split the replicas into instances of consecutive replicas, as Megatron-LM does for its
    distributed optimizer; every rank must call it.

    Args:
        grid: the process grid.
        instances: how many; a divisor of the number of replicas.

    Returns the replicas of this rank's instance, and the replicas with the same position in each
    instance.
    """
    if instances == 1:
        return grid.replicas, Group((grid.rank,), 0, None)
    inner, outer = [], []
    for ranks in groups_along("replicas", grid.sizes):
        size = len(ranks) // instances
        runs = [ranks[at:at + size] for at in range(0, len(ranks), size)]
        inner += runs
        outer += zip(*runs, strict=True)
    return grid.group_among(inner), grid.group_among(outer)
