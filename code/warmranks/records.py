"""What the ranks of a run communicated, as plain data. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A collective, a send, or a receive that a rank began.

    Attributes:
        op: its name: "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv", ...
        group: the ranks of its process group.
        peer: the other rank of a send or a receive, or the root of a collective that has one.
        bytes: of the tensors that this rank passed in; of a receive, those of the buffer.
        started: FLOPs of the matmuls that this rank had done when the call began.
        finished: the same when it was waited for; None where that never happened.
    """

    op: str
    group: tuple[int, ...]
    peer: int | None
    bytes: int
    started: float
    finished: float | None


@dataclass(frozen=True)
class Record:
    """What one rank did.

    Attributes:
        value: what the function returned.
        calls: in the order in which they began.
        flops: of the rank's matmuls, in all.
    """

    value: object
    calls: tuple[Call, ...]
    flops: float
