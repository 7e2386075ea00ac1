"""Compute the time and memory of recorded ranks on the given GPUs and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from virtualgpu.core.clock import COMPUTE
from virtualgpu.net.topology import Topology
from virtualgpu.replay.errors import BadRecord
from virtualgpu.replay.exchange import Exchange
from virtualgpu.replay.player import Player
from virtualgpu.replay.reading import Record

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
        communicated: bytes of the buffers of its collectives, and of its sends.
        unknown: number of calls of operations without a cost rule, by operation.
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
    communicated: int
    unknown: dict[str, int]

    @property
    def flops(self) -> int:
        """FLOPs of all kernels."""
        return sum(self.flops_by_dtype.values())

    def flops_in(self, dtype: str) -> int:
        """Return the FLOPs in this dtype and in those of higher precision, which cost no less."""
        return sum(flops for other, flops in self.flops_by_dtype.items()
                   if PRECISION[other] >= PRECISION[dtype])

    @property
    def exposed_compute(self) -> float:
        """Exposed communication of the default stream, in seconds."""
        return self.exposed.get(COMPUTE, 0.0)


def price(records: Sequence[Record], topology: Topology) -> list[Priced]:
    """Return the figures of every rank that has a record.

    Args:
        records: one for each rank, or, in a symmetric job, one for each rank that was present.
        topology: GPUs and links of the whole job.

    Raises:
        BadRecord: an entry cannot follow those before it, ranks do not match, or all ranks wait for
            each other.
    """
    world, ranks = len(topology.nodes), [record.rank for record in records]
    for record in records:
        if record.world != world:
            raise BadRecord(f"record of rank {record.rank}: a job of {record.world} ranks; this "
                            f"one has {world}")
    if len(set(ranks)) < len(ranks) or 0 not in ranks:
        raise BadRecord(f"records of ranks {ranks}: expected different ranks, 0 among them")
    exchange = Exchange(ranks)
    players = [Player(record, topology, exchange) for record in records]
    progress = True
    while progress:
        progress = any([player.advance() for player in players])
    stuck = [player.blocked() for player in players if not player.done]
    if stuck:
        raise BadRecord(f"deadlock: no rank can make progress: {'; '.join(stuck)}")
    for player in players:
        player.finish()
    exchange.check_complete()
    return [_priced(player) for player in players]


def _priced(player: Player) -> Priced:
    gpu = player.gpu
    return Priced(
        player.record.rank, gpu.clock.host, dict(gpu.clock.exposed), dict(gpu.busy),
        dict(player.streams), gpu.memory.peak, gpu.memory.peak_reserved,
        gpu.memory.peak_requested, dict(player.flops), player.bytes, player.communicated,
        dict(gpu.unknown))
