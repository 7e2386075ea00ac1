"""Optimizer state in host memory (ZeRO-Offload, Ren et al. 2021), which the CPU updates.

Each rank's shard [m] has two contiguous parts. The GPU updates the first one as usual. The second
one, a fraction f of all elements, has its moments and, in 16-bit training, its master weights in
host memory. A step copies its gradients to the host, runs AdamW there, and copies the updated
weights back, while the GPU updates its own part. Parameters, gradients, and the norm stay on the
GPU, so sharding, clipping, and loss scaling are the same as without offloading.

Only --optimizer-cpu-offload imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from minimegatron.context import Context, params_dtype
from minimegatron.device.host_copies import HostTraffic
from minimegatron.parallel.ddp import BufferRange

CACHE_LINE = 16  # fp32 numbers; torch's kernel rounds differently in what is left of a last one
PIECE = 1 << 24  # elements that --overlap-cpu-optimizer-d2h-h2d copies and updates at a time


class HostPart:
    """The part of a rank's shard whose optimizer state is in host memory.

    On the CPU, host memory is the device's own. So a device whose tensors have values keeps one
    buffer [m] for both parts, which is what checkpoints read and write.

    Attributes:
        first: the shard's elements [0, first) are updated on the device.
        ranges: the ranges of the others.
        traffic: the copies and the update of a step.
    """

    def __init__(self, ctx: Context, ranges: Sequence[BufferRange], owned: int) -> None:
        """Choose the last elements of the shard.

        Args:
            ctx: the rank's context.
            ranges: what this rank updates, in order.
            owned: elements of its shard, m.
        """
        config, self.has_values = ctx.config, ctx.device.has_values
        self.copies = ctx.device.host_copies()
        self.first = aligned(ranges, owned - int(config.offloaded_fraction * owned))
        elements = owned - self.first
        self.ranges = list(cut(ranges, self.first, owned))
        each = params_dtype(config).itemsize
        size = PIECE if config.overlap_cpu_optimizer_d2h_h2d else max(elements, 1)
        # Without master weights, the host gets the weights along with the gradients.
        self.traffic = HostTraffic(
            [min(size, elements - start) for start in range(0, elements, size)],
            down=4 if config.precision != "fp32" else 8, up=each)
        self._grads: list[torch.Tensor] = []

    def start(self, grads_of: Callable[[BufferRange], torch.Tensor]) -> None:
        """Start to copy the gradients of each range to the host, once they are clipped."""
        self.copies.start_update(self.traffic)
        if self.has_values:
            self._grads = [grads_of(part).clone() for part in self.ranges]

    def finish(self, params: torch.Tensor, main_params: torch.Tensor | None,
               adam: Callable[..., None]) -> None:
        """Update the host's part, and copy the weights to the parameters in their dtype.

        Args:
            params: the parameter buffer.
            main_params: the buffer of master weights [m], if there are any.
            adam: updates a range in place, given its weights and gradients.
        """
        self.copies.update(self.traffic)
        for part, grads in zip(self.ranges, self._grads, strict=False):
            weights = (params[part.params].clone() if main_params is None
                       else main_params[part.shard])
            adam(part, weights, grads)
            params[part.params] = weights
        self._grads.clear()


def aligned(ranges: Sequence[BufferRange], first: int) -> int:
    """Return `first`, or up to 15 less, so that it is whole cache lines after its range's start."""
    for part in ranges:
        if part.shard.start < first < part.shard.stop:
            return first - (first - part.shard.start) % CACHE_LINE
    return first


def cut(ranges: Sequence[BufferRange], start: int, stop: int) -> Iterator[BufferRange]:
    """Yield what lies in elements [start, stop) of the shard."""
    for part in ranges:
        low, high = max(part.shard.start, start), min(part.shard.stop, stop)
        if low < high:
            ahead, size = low - part.shard.start, high - low
            places = {name: slice(place.start + ahead, place.start + ahead + size)
                      for name, place in (("shard", part.shard), ("grads", part.grads),
                                          ("params", part.params))}
            yield replace(part, **places)
