"""Ranges of the flat buffers that hold gradients, parameters, and optimizer states.

A rank's optimizer works on consecutive elements that are treated alike. The buffers of what a rank
owns, of gradients, and of parameters may have different lengths, so each range has a place in all
three.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minimegatron.model.parameters import ParamGroup

CACHE_LINE = 16  # fp32 numbers; torch's kernel rounds differently in what is left of a last one


@dataclass(frozen=True)
class BufferRange:
    """Consecutive elements that this rank updates, all of one parameter group.

    Attributes:
        shard: where they are in the buffers of what this rank owns.
        grads, params: where they are in the gradient and the parameter buffer, which hold
            everything, or what this rank owns.
        group: the parameter group.
        counted: whether this rank counts them in sums over the model (norms, zeros).
        partial: whether their gradients are summed over the tensor-parallel ranks, too.
    """

    shard: slice
    grads: slice
    params: slice
    group: ParamGroup
    counted: bool
    partial: bool


def joined(ranges: Iterable[slice]) -> list[slice]:
    """Return the ranges with neighbors joined."""
    result: list[slice] = []
    for each in ranges:
        start = result.pop().start if result and result[-1].stop == each.start else each.start
        result.append(slice(start, each.stop))
    return result


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
