"""A communicator's channels and buffers, and the lines that NCCL_DEBUG=INFO prints about it.

The format is that of NCCL 2.8 to 2.11. Channels take the communicator's rings in turn. Trees are
timed but not listed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from virtualgpu.core.card import Card
from virtualgpu.core.slots import bus
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.intranode import SHARED_MEMORY, pair
from virtualgpu.net.topology import Topology

# Each of NCCL's channels has buffers for three protocols (NCCL_BUFFSIZE of 4 MiB, and as much
# again). NCCL opens many channels over NVLink, few over slower links, and between nodes two for
# each adapter, but no more than within a node.
BUFFER, CHANNELS, FEW_CHANNELS = 10 * 2**20, 16, 2


def channels_of(card: Card, path: CommunicationPath) -> int:
    """Return the number of channels that a communicator opens."""
    most = CHANNELS if card.nvlink else FEW_CHANNELS
    return most if path.nodes == 1 else min(most, FEW_CHANNELS * path.adapters)


def buffer_bytes(card: Card, path: CommunicationPath) -> int:
    """Return the bytes of a communicator's buffers on each GPU."""
    return channels_of(card, path) * BUFFER


def transport(topology: Topology, one: int, other: int) -> str:
    """Return NCCL's name for the transport between two ranks of the job."""
    if topology.nodes[one] != topology.nodes[other]:
        return "NET/IB/0" if topology.network.name.startswith("infiniband") else "NET/Socket/0"
    link = pair(topology.seats[one], topology.seats[other])
    return "SHM/direct/direct" if link.name == SHARED_MEMORY else "P2P/IPC"


def lines(topology: Topology, ranks: Sequence[int], me: int, channels: int) -> list[str]:
    """Return the lines that one rank of a communicator prints.

    Args:
        topology: the job's GPUs and links.
        ranks: the communicator's ranks in the job; NCCL numbers them from 0.
        me: this rank's index among them.
    """
    rank = ranks[me]
    node = topology.nodes[rank]
    head = (f"{node}:{os.getpid()}:{threading.get_native_id()} "
            f"[{topology.local_index(rank)}] NCCL INFO")
    rings = topology.rings(ranks)

    def hop(channel: int, start: int, end: int, mark: str = "") -> str:
        names = [f"{index}[{bus(topology.slot(ranks[index])):x}000]" for index in (start, end)]
        return (f"Channel {channel:02d} : {' -> '.join(names)}{mark} "
                f"via {transport(topology, ranks[start], ranks[end])}")

    texts = [f"virtual {topology.cards[rank].name}: a modeled communicator of the job's rank(s) "
             f"{','.join(map(str, ranks))}"]
    if me == 0:
        rows = ["".join(f"{index:5d}" for index in ring) for ring in rings]
        texts += [f"Channel {channel:02d}/{channels:02d} :{rows[channel % len(rows)]}"
                  for channel in range(channels)]
    for channel in range(channels):
        order = rings[channel % len(rings)]
        position = order.index(me)
        before, after = order[position - 1], order[(position + 1) % len(order)]
        if topology.nodes[ranks[before]] != node:
            texts.append(hop(channel, before, me, " [receive]"))
        away = topology.nodes[ranks[after]] != node
        texts.append(hop(channel, me, after, " [send]" if away else ""))
    texts.append("Connected all rings")
    return [f"{head} {text}" for text in texts]
