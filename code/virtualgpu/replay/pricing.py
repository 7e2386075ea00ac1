"""Compute the time and memory of recorded ranks on the given GPUs and links."""

from __future__ import annotations

from collections.abc import Sequence

from virtualgpu.net.topology import Topology
from virtualgpu.replay.bounds import Priced
from virtualgpu.replay.exchange import Exchange
from virtualgpu.replay.format import BadRecord
from virtualgpu.replay.player import Player
from virtualgpu.replay.reading import Record


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
        gpu.memory.peak_requested, dict(player.flops), player.bytes, dict(player.communicated),
        dict(player.downloaded), player.slept, player.missed, dict(gpu.unknown), player.reads)
