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
from itertools import chain, pairwise
from typing import NamedTuple

import torch

from minimegatron.context import Context, params_dtype
from minimegatron.device.host_copies import Copy, HostTraffic
from minimegatron.parallel.ddp import BufferRange

CACHE_LINE = 16  # fp32 numbers; torch's kernel rounds differently in what is left of a last one
PIECE = 1 << 24  # elements that --overlap-cpu-optimizer-d2h-h2d copies and updates at a time


class Arriving(NamedTuple):
    """A range whose update the host has begun.

    Attributes:
        part: the range.
        grads: the copy of its gradients.
        weights: the copy of its weights; None if the host has master weights.
    """

    part: BufferRange
    grads: Copy
    weights: Copy | None


class HostPart:
    """The part of a rank's shard whose optimizer state is in host memory.

    Attributes:
        first: the shard's elements [0, first) are updated on the device.
        on_device: their ranges.
        pieces: the ranges of the others. While the host updates a piece, others are copied.
        traffic: the copies and the update of a step.
        moments: Adam's two moments of the others, fp32 [m - first] each, in host memory. A device
            whose tensors have no values does without.
        main_params: their master weights, the same; None in fp32.
    """

    def __init__(self, ctx: Context, ranges: Sequence[BufferRange], owned: int,
                 moments: Sequence[str]) -> None:
        """Choose the last elements of the shard.

        Args:
            ctx: the rank's context.
            ranges: what this rank updates, in order.
            owned: elements of its shard, m.
            moments: the moments' names.
        """
        config, self.has_values = ctx.config, ctx.device.has_values
        self.copies = ctx.device.host_copies()
        self.first = aligned(ranges, owned - int(config.offloaded_fraction * owned))
        self.on_device, elements = list(cut(ranges, 0, self.first)), owned - self.first
        size = PIECE if config.overlap_cpu_optimizer_d2h_h2d else max(elements, 1)
        starts = [aligned(ranges, start) for start in range(self.first, owned, size)]
        self.pieces = [list(cut(ranges, *ends)) for ends in pairwise([*starts, owned])]
        is_fp32 = config.precision == "fp32"
        # Without master weights, the host gets the weights along with the gradients.
        self.traffic = HostTraffic([end - start for start, end in pairwise([*starts, owned])],
                                   down=8 if is_fp32 else 4, up=params_dtype(config).itemsize)
        self.moments, self.main_params = {}, None
        if self.has_values:
            self.moments = {name: self.copies.zeros(elements) for name in moments}
            self.main_params = None if is_fp32 else self.copies.zeros(elements)
        self._arriving: list[list[Arriving]] = []
        self._scalars: dict[str, Copy] = {}

    def copy_owned(self, params: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the parameters to the master weights of both parts.

        Args:
            params: the parameter buffer.
            out: the device's master weights [first].
        """
        if not self.has_values:
            return
        for part in self.on_device:
            out[part.shard] = params[part.params]
        for part in chain.from_iterable(self.pieces):
            self.main_params[self.held(part).shard] = params[part.params].to("cpu")

    def held(self, part: BufferRange) -> BufferRange:
        """Return a range with its place in the host's buffers instead of in the shard."""
        shard = slice(part.shard.start - self.first, part.shard.stop - self.first)
        return replace(part, shard=shard)

    def start(self, grads_of: Callable[[BufferRange], torch.Tensor], params: torch.Tensor,
              scalars: dict[str, torch.Tensor | None]) -> None:
        """Start to copy what the host needs, once the gradients are clipped.

        Args:
            grads_of: returns the gradients of a range.
            params: the parameter buffer.
            scalars: tensors of one element by name, for `adam` in `finish`.
        """
        self.copies.start_update(self.traffic)
        if not self.has_values:
            return
        download = self.copies.download
        self._scalars = {name: download(scalar) for name, scalar in scalars.items()
                         if scalar is not None}
        self._arriving = [
            [Arriving(part, download(grads_of(part)),
                      download(params[part.params]) if self.main_params is None else None)
             for part in piece] for piece in self.pieces]

    def finish(self, params: torch.Tensor, adam: Callable[..., None]) -> None:
        """Update the host's part, and copy the weights to the parameters in their dtype.

        Args:
            params: the parameter buffer.
            adam: updates a range in place, given its weights, gradients, the buffers of all
                moments, and the scalars.
        """
        self.copies.update(self.traffic)
        for piece in self._arriving:
            for each in piece[-1:]:
                self.copies.host_waits((each.weights or each.grads).arrives)
            updated = [(each.part, self._update(each, adam)) for each in piece]
            for part, weights in updated:
                self.copies.wait(self.copies.overwrite(params[part.params], weights))
        self._arriving = []

    def _update(self, each: Arriving, adam: Callable[..., None]) -> torch.Tensor:
        """Update a range, and return its weights."""
        held = self.held(each.part)
        weights = (each.weights.tensor if self.main_params is None
                   else self.main_params[held.shard])
        scalars = {name: copy.tensor for name, copy in self._scalars.items()}
        adam(held, weights, each.grads.tensor, self.moments, {"skip": None, **scalars})
        return weights


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
