"""The figures of a priced record, and lower bounds on the work that it must claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.errors import VirtualGpuError

LowerBound = int | Sequence[int] | None
DESCRIPTIONS = {"flops": "FLOPs in {dtype} or higher precision",
                "bytes": "bytes moved between memory and the chip",
                "live": "bytes of live tensors on the GPU at the peak",
                "communicated": "bytes communicated in groups of at least {among} ranks"}
PRECISION = {"fp64": 4, "fp32": 3, "tf32": 2, "bf16": 1, "fp16": 1, "fp8": 0, "fp4": -1}


@dataclass(frozen=True)
class Priced:
    """One rank's figures.

    Attributes:
        rank: the rank in the job.
        seconds: modeled time from its start to its end.
        exposed: by stream, seconds of exposed communication.
        busy: kernel and communication time, in seconds by operation.
        streams: kernel time, in seconds by stream.
        peak: bytes of memory allocated at the peak, as PyTorch counts them.
        reserved: bytes that PyTorch reserved at the peak.
        live: bytes of all live tensors at the peak, without rounding.
        flops_by_dtype: FLOPs of all kernels, by the dtype of their operands.
        bytes: bytes that kernels moved between memory and the chip.
        communicated_by_ranks: bytes of the buffers of its collectives, and of its sends, by the
            number of ranks in the process group.
        downloaded: bytes that it copied to the host: "pinned" by asynchronous copies to pinned
            memory, "pageable" by all others.
        slept: seconds that the program slept, without polling for the GPU's progress.
        unawaited: number of collectives and receives for which neither the default stream nor the
            host ever waits, so that what reads their results may run too early.
        unknown: number of calls of operations without a cost rule, by operation.
        reads: how many times the host waited to read a value from the GPU.
    """

    rank: int
    seconds: float
    exposed: dict[str, float]
    busy: dict[str, float]
    streams: dict[str, float]
    peak: int
    reserved: int
    live: int
    flops_by_dtype: dict[str, int]
    bytes: int
    communicated_by_ranks: dict[str, int]
    downloaded: dict[str, int]
    slept: float
    unawaited: int
    unknown: dict[str, int]
    reads: int

    @property
    def flops(self) -> int:
        """FLOPs of all kernels."""
        return sum(self.flops_by_dtype.values())

    def flops_in(self, dtype: str) -> int:
        """Return the FLOPs in this dtype and in those of higher precision, which cost no less."""
        return sum(flops for other, flops in self.flops_by_dtype.items()
                   if PRECISION[other] >= PRECISION[dtype])

    @property
    def communicated(self) -> int:
        """Bytes of the buffers of its collectives, and of its sends, to other ranks."""
        return self.communicated_among(2)

    def communicated_among(self, ranks: int) -> int:
        """Return the bytes communicated in process groups of at least this many ranks.

        A collective in a group of one rank communicates nothing.
        """
        return sum(size for count, size in self.communicated_by_ranks.items()
                   if int(count) >= max(ranks, 2))

    @property
    def exposed_compute(self) -> float:
        """Exposed communication of the default stream, in seconds."""
        return self.exposed.get(COMPUTE, 0.0)


class TooLittle(VirtualGpuError):
    """Raised if a record has less than the task needs; the message has all figures."""


def require(priced: Iterable[Priced], *, flops: LowerBound = None, bytes: LowerBound = None,
            live: LowerBound = None, communicated: LowerBound = None, dtype: str = "fp32",
            among: int = 2) -> None:
    """Reject records that claim less work than a task needs.

    A bound is one number for all ranks, or one for each record. Derive it from the task, not from a
    run, and leave no slack that a cheating submission could use.

    Args:
        priced: figures of all ranks, from `price`.
        flops: FLOPs in `dtype` or in a dtype of higher precision.
        bytes: bytes moved between memory and the chip.
        live: bytes of live tensors at the peak.
        communicated: bytes of collectives' buffers and of sends.
        dtype: the fastest dtype whose FLOPs count, such as "bf16" for a step under bf16 autocast.
        among: the smallest process group whose communication counts, in ranks. More ranks than a
            node has GPUs leave out groups within a node.

    Raises:
        TooLittle: A record claims less.
        ValueError: A bound could reject nothing, or the dtype is unknown.
    """
    ranks, short = list(priced), []
    if dtype not in PRECISION or not ranks:
        raise ValueError(f"dtype {dtype!r}: expected one of {', '.join(PRECISION)}" if ranks else
                         "no records: bounds need at least one")
    for name, bound in (("flops", flops), ("bytes", bytes), ("live", live),
                        ("communicated", communicated)):
        if bound is None:
            continue
        bounds = [bound] * len(ranks) if isinstance(bound, (int, float)) else list(bound)
        if len(bounds) != len(ranks):
            raise ValueError(f"{name}: {len(bounds)} bounds for {len(ranks)} ranks")
        if not all(0 <= need < math.inf for need in bounds):
            raise ValueError(f"{name}: a bound must be finite and not negative, found {bound}")
        for rank, need in zip(ranks, bounds, strict=True):
            claimed = (rank.flops_in(dtype) if name == "flops" else
                       rank.communicated_among(among) if name == "communicated" else
                       getattr(rank, name))
            if claimed < need:
                quantity = DESCRIPTIONS[name].format(dtype=dtype, among=max(among, 2))
                short.append(f"rank {rank.rank}: {claimed:,} {quantity}, at least {need:,.0f} are "
                             "needed")
    if short:
        if any(DESCRIPTIONS["live"] in one for one in short):
            short.append("tensors in the host's memory do not count")
        raise TooLittle("it does less on the GPU than the task needs: " + "; ".join(short))
