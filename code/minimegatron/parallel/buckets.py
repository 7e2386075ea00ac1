"""Data parallelism: gradients are summed over the replicas, in buckets, perhaps while others are
still being computed, and perhaps only where they are needed.

A bucket is a range of the flat gradient buffer that travels in one message. It may leave as soon as
its last gradient is complete, while the backward pass goes on (Li et al. 2020, section 3.2.3).

Sharded (the distributed optimizer; Rajbhandari et al. 2020, ZeRO stage 1), each of d replicas owns
the d-th part of every bucket: gradients are reduce-scattered, so that it has the sum for what it
owns; it alone keeps the main weights and moments for that; and the new weights are all-gathered.
The two messages together move as many bytes as one all-reduce.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from minimegatron.context import Context

Pending = tuple[int, dist.Work, torch.Tensor]


class Buckets:
    """The ranges of a flat buffer, and what travels of them.

    total: the buffer's elements, padded so that the replicas' parts are equal. owned: the ranges
    that this rank updates: everything, or when sharded its part of every bucket.
    """

    def __init__(self, ctx: Context, elements: int) -> None:
        config, self.replicas = ctx.config, ctx.grid.dp
        self.sharded = config.use_distributed_optimizer and self.replicas.size > 1
        parts = self.replicas.size if self.sharded else 1
        size = -(-config.ddp_bucket_size // parts) * parts
        self.total = -(-elements // parts) * parts
        self.ranges = [slice(start, min(start + size, self.total))
                       for start in range(0, self.total, size)]
        self.owned = ([self._part(bucket) for bucket in self.ranges] if self.sharded
                      else [slice(0, self.total)])
        self._pending: list[Pending] = []

    def _part(self, bucket: slice) -> slice:
        size = (bucket.stop - bucket.start) // self.replicas.size
        start = bucket.start + self.replicas.index * size
        return slice(start, start + size)

    def start(self, number: int, flat: torch.Tensor) -> None:
        """Begin to sum one bucket of `flat`; all replicas must begin them in the same order."""
        if self.replicas.size == 1:
            return
        bucket = flat[self.ranges[number]]
        if self.sharded:
            total = bucket.new_empty(bucket.numel() // self.replicas.size)
            work = self.replicas.start_reduce_scatter(total, bucket)
        else:
            total, work = bucket, self.replicas.start_all_reduce(bucket)
        self._pending.append((number, work, total))

    def finish(self, flat: torch.Tensor) -> None:
        """Wait for what was started; `flat` then has the sums in the ranges of `owned`."""
        for number, work, total in self._pending:
            work.wait()
            if self.sharded:
                flat[self.owned[number]] = total
        self._pending.clear()

    def gather(self, flat: torch.Tensor) -> None:
        """Fill `flat`, which is right in this rank's `owned` ranges, with the other replicas'."""
        if self.sharded:
            for bucket, part in zip(self.ranges, self.owned, strict=True):
                flat[bucket] = self.replicas.all_gather(flat[part])
