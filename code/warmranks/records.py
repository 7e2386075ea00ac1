"""Represent the communication of ranks as plain data, with the standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CommunicationCall:
    """A collective, send, or receive that a rank started.

    Attributes:
        op: the name: "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv", ...
        group: the ranks of the process group.
        peer: the other rank of a send or receive, or the root of a collective that has one.
        bytes: size of the tensors that this rank passed in; for a receive, size of the buffer.
        started: matmul FLOPs that this rank had done at the start of the call, as it says itself.
        finished: matmul FLOPs at the end of its wait for the call; None if it never waited.
        order: how many calls of all ranks had begun before this one.
        completed: how many calls of all ranks had begun when this one was complete; None if it
            never was.
    """

    op: str
    group: tuple[int, ...]
    peer: int | None
    bytes: int
    started: float
    finished: float | None
    order: int = field(default=0, compare=False)
    completed: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RankRecord:
    """The result and the communication of one rank.

    Attributes:
        value: the function's return value.
        calls: the calls of torch.distributed, in the order of their start.
        flops: total matmul FLOPs of the rank.
    """

    value: object
    calls: tuple[CommunicationCall, ...]
    flops: float
