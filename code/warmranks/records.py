"""The communication of a run's ranks, as plain data. Uses the standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A collective, send, or receive that a rank started.

    Attributes:
        op: the name: "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv", ...
        group: the ranks of the process group.
        peer: the other rank of a send or receive, or the root of a collective that has one.
        bytes: size of the tensors that this rank passed in; for a receive, size of the buffer.
        started: matmul FLOPs that this rank had done when the call began.
        finished: the same, at the end of its wait for the call; None if it never waited.
    """

    op: str
    group: tuple[int, ...]
    peer: int | None
    bytes: int
    started: float
    finished: float | None


@dataclass(frozen=True)
class Record:
    """The result and the communication of one rank.

    Attributes:
        value: the function's return value.
        calls: the calls of torch.distributed, in the order in which they began.
        flops: total matmul FLOPs of the rank.
    """

    value: object
    calls: tuple[Call, ...]
    flops: float
