"""Placement of a job's ranks on nodes, and the links between the ranks of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from virtualgpu.core.card import Card
from virtualgpu.net import intranode
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.intranode import GpuSlot
from virtualgpu.net.network import Link


@dataclass(frozen=True)
class Topology:
    """The ranks of a job on its nodes.

    Attributes:
        nodes: the name of each rank's node.
        cards: the GPU model of each rank.
        network: the link between nodes.
        slots: number of each rank's GPU on its node; None where it is not known, or empty.
    """

    nodes: tuple[str, ...]
    cards: tuple[Card, ...]
    network: Link
    slots: tuple[int | None, ...] = ()

    def path(self, ranks: Sequence[int]) -> CommunicationPath:
        """Return the path that a collective of these ranks of the job takes.

        Within a node, the group has the NVLinks that its GPUs share (intranode.ring). A node's
        adapters are shared: if a group has k of a node's n ranks, n / k groups like it (such as the
        data-parallel groups of the other tensor-parallel ranks) communicate at the same time, if
        there are that many on the same nodes. A rank sends through one adapter, the nearest: with
        one H100 per node, an all-reduce over four adapters of 50 GB/s reaches 50 GB/s
        (github.com/NVIDIA/nccl-tests issue 232).
        """
        by_node = self._by_node(ranks)
        groups = [tuple(self.seats[rank] for rank in members) for members in by_node.values()]
        near = [intranode.ring(seats) for seats in groups]
        shared = [seats for seats in groups if len(seats) > 1]
        fewest = min(map(len, groups))
        bandwidth = min(link.effective for link in near)
        port = min(intranode.port(self.cards[rank]).effective for rank in ranks)
        if len(groups) > 1:
            on_node = Counter(self.nodes)
            sharing = min(max(on_node[node] / len(members) for node, members in by_node.items()),
                          self._shifted(ranks, max(on_node.values())))
            port = min(self.network.effective / sharing, self.network.per_adapter * fewest)
            bandwidth = min([port, *(intranode.ring(seats).effective for seats in shared)])
        return CommunicationPath(
            len(ranks), len(groups), bandwidth, max(link.latency for link in near),
            self.network.latency, min(self.network.adapters, fewest), port=port,
            pair=min(map(intranode.slowest_pair, shared), default=port))

    def _shifted(self, ranks: Sequence[int], furthest: int) -> int:
        """Return the number of groups of the same form on the same nodes, rank by rank."""
        last, nodes = len(self.nodes), self.nodes
        return sum(all(0 <= rank + by < last and nodes[rank + by] == nodes[rank] for rank in ranks)
                   for by in range(1 - furthest, furthest))

    def _by_node(self, ranks: Iterable[int]) -> dict[str, list[int]]:
        """Return the ranks on each node, in the given order."""
        by_node: dict[str, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self.nodes[rank], []).append(rank)
        return by_node

    @cached_property
    def seats(self) -> tuple[GpuSlot, ...]:
        """Each rank's GPU and slot. Slots follow rank order unless all are known and different."""
        order: list[int] = []
        ranks_so_far: Counter[str] = Counter()
        for node in self.nodes:
            order.append(ranks_so_far[node])
            ranks_so_far[node] += 1
        known = None not in (self.slots or (None,)) and (
            len({*zip(self.nodes, self.slots, strict=True)}) == len(self.nodes))
        return tuple(map(GpuSlot, self.cards, self.slots if known else order))

    def local_index(self, rank: int) -> int:
        """Return the local rank: the number of lower ranks on the same node."""
        return self.nodes[:rank].count(self.nodes[rank])

    def slot(self, rank: int) -> int:
        """Return the number of a rank's GPU on its node."""
        return self.seats[rank].slot

    def rings(self, ranks: Sequence[int]) -> list[list[int]]:
        """Return the order of the ranks in each of a communicator's rings, as indices into `ranks`.

        A node's ranks are neighbors, in the order of its NVLinks if these form rings. A ring that
        leaves a node passes the GPUs of each node in the order of the node's first ring.

        Args:
            ranks: the communicator's ranks in the job.
        """
        index = {rank: position for position, rank in enumerate(ranks)}
        node_rings: list[list[list[int]]] = []
        for members in self._by_node(ranks).values():
            by_slot = {self.slot(rank): index[rank] for rank in members}
            orders = intranode.rings([self.seats[rank] for rank in members])
            node_rings.append(
                [[by_slot[slot] for slot in order] for order in dict.fromkeys(orders)]
                or [[index[rank] for rank in sorted(members)]])
        if len(node_rings) == 1:
            return node_rings[0]
        return [[index for orders in node_rings for index in orders[0]]]

    def p2p_path(self, source: int, target: int) -> CommunicationPath:
        """Return the path of a point-to-point send.

        Args:
            source: the rank that sends.
            target: the rank that receives.
        """
        path = self.path((source, target))
        if path.nodes > 1:
            return path
        share = min(self.cards[rank].efficiency.p2p for rank in (source, target))
        link = intranode.pair(self.seats[source], self.seats[target])
        return CommunicationPath(2, 1, share * link.effective, link.latency, path.far)

    def describe(self) -> str:
        """Describe the links for a log line."""
        by_node = self._by_node(range(len(self.nodes)))
        links = [intranode.ring(tuple(self.seats[rank] for rank in members))
                 for members in by_node.values() if len(members) > 1]
        kinds = dict.fromkeys(f"{link.name} {link.bandwidth / 1e9:g} GB/s" for link in links)
        parts = [f"within a node {' or '.join(kinds)}"] if kinds else []
        if len(by_node) > 1:
            parts.append(f"between nodes {self.network.name}")
        return ", ".join(parts) or "none, with a single GPU"
