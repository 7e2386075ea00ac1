"""Placement of ranks on nodes, and the links between the ranks of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from virtualgpu.core.card import Card
from virtualgpu.net import inside
from virtualgpu.net.collectives import Path
from virtualgpu.net.inside import Seat
from virtualgpu.net.network import Link


@dataclass(frozen=True)
class Topology:
    """The ranks of a job on its nodes.

    Attributes:
        nodes: the name of each rank's node.
        cards: the GPU model of each rank.
        network: the link between nodes.
        slots: number of each rank's GPU on its node; None for a rank, or empty, if not known.
    """

    nodes: tuple[str, ...]
    cards: tuple[Card, ...]
    network: Link
    slots: tuple[int | None, ...] = ()

    def path(self, ranks: Sequence[int]) -> Path:
        """Return the path that a collective of these ranks of the job takes.

        Within a node, the group has the NVLinks that its GPUs share (inside.ring). A node's
        adapters are shared: if a group has k of a node's n ranks, n / k groups like it (such as the
        data-parallel groups of the other tensor-parallel ranks) communicate at the same time, if
        there are that many on the same nodes. A rank sends through one adapter, the nearest: with
        one H100 per node, an all-reduce over four adapters of 50 GB/s reaches 50 GB/s
        (github.com/NVIDIA/nccl-tests issue 232).
        """
        mine = self._by_node(ranks)
        groups = [tuple(self.seats[rank] for rank in here) for here in mine.values()]
        near = [inside.ring(seats) for seats in groups]
        shared = [seats for seats in groups if len(seats) > 1]
        fewest = min(map(len, groups))
        bandwidth = min(link.effective for link in near)
        port = min(inside.port(self.cards[rank]).effective for rank in ranks)
        if len(groups) > 1:
            everyone = Counter(self.nodes)
            alike = min(max(everyone[node] / len(here) for node, here in mine.items()),
                        self._shifted(ranks, max(everyone.values())))
            port = min(self.network.effective / alike, self.network.per_adapter * fewest)
            bandwidth = min([port, *(inside.ring(seats).effective for seats in shared)])
        return Path(
            len(ranks), len(groups), bandwidth, max(link.latency for link in near),
            self.network.latency, min(self.network.adapters, fewest), port=port,
            pair=min(map(inside.slowest_pair, shared), default=port))

    def _shifted(self, ranks: Sequence[int], furthest: int) -> int:
        """Return the number of groups of the same form on the same nodes, rank by rank."""
        last, nodes = len(self.nodes), self.nodes
        return sum(all(0 <= rank + by < last and nodes[rank + by] == nodes[rank] for rank in ranks)
                   for by in range(1 - furthest, furthest))

    def _by_node(self, ranks: Iterable[int]) -> dict[str, list[int]]:
        """Return the ranks on each node, in the given order."""
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.nodes[rank], []).append(rank)
        return found

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """Each rank's GPU and its slot, in rank order unless all slots are known and different."""
        order: list[int] = []
        taken: Counter[str] = Counter()
        for node in self.nodes:
            order.append(taken[node])
            taken[node] += 1
        known = None not in (self.slots or (None,)) and (
            len({*zip(self.nodes, self.slots, strict=True)}) == len(self.nodes))
        return tuple(map(Seat, self.cards, self.slots if known else order))

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
        index = {rank: at for at, rank in enumerate(ranks)}
        found: list[list[list[int]]] = []
        for here in self._by_node(ranks).values():
            by_slot = {self.slot(rank): index[rank] for rank in here}
            orders = inside.rings([self.seats[rank] for rank in here])
            found.append([[by_slot[slot] for slot in order] for order in dict.fromkeys(orders)] or [
                [index[rank] for rank in sorted(here)]])
        if len(found) == 1:
            return found[0]
        return [[index for orders in found for index in orders[0]]]

    def wire(self, source: int, target: int) -> Path:
        """Return the path of a point-to-point send.

        Args:
            source: the rank that sends.
            target: the rank that receives.
        """
        path = self.path((source, target))
        if path.nodes > 1:
            return path
        share = min(self.cards[rank].efficiency.p2p for rank in (source, target))
        link = inside.pair(self.seats[source], self.seats[target])
        return Path(2, 1, share * link.effective, link.latency, path.far)

    def describe(self) -> str:
        """Describe the links for a log line."""
        mine = self._by_node(range(len(self.nodes)))
        links = [inside.ring(tuple(self.seats[rank] for rank in here))
                 for here in mine.values() if len(here) > 1]
        kinds = dict.fromkeys(f"{link.name} {link.bandwidth / 1e9:g} GB/s" for link in links)
        said = [f"within a node {' or '.join(kinds)}"] if kinds else []
        if len(mine) > 1:
            said.append(f"between nodes {self.network.name}")
        return ", ".join(said) or "none, with a single GPU"
