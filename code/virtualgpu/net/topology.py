"""Where ranks sit, and what lies between those of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from virtualgpu.core.card import Card
from virtualgpu.net.collectives import Path
from virtualgpu.net.network import Link, within_node


@dataclass(frozen=True)
class Topology:
    """nodes: the name of each rank's node. cards: each rank's card. network: between nodes.
    slots: the number on its node of each rank's card; None, or empty: not known."""

    nodes: tuple[str, ...]
    cards: tuple[Card, ...]
    network: Link
    slots: tuple[int | None, ...] = ()

    def path(self, ranks: Sequence[int]) -> Path:
        """Return the path that a collective of these ranks of the job takes.

        A node's adapters are shared: when a group has k of a node's n ranks, n / k groups like it
        (the other tensor-parallel ranks' replicas, say) talk at the same time, if there are so
        many that lie on the same nodes. A rank sends through one adapter, the nearest: with one
        H100 per node, an all-reduce over four adapters of 50 GB/s reaches 50 GB/s
        (github.com/NVIDIA/nccl-tests issue 232).
        """
        near = [within_node(self.cards[rank]) for rank in ranks]
        mine = Counter(self.nodes[rank] for rank in ranks)
        local = max(mine.values())
        bandwidth = min((link.effective for link in near), default=0.0)
        if len(mine) > 1:
            everyone = Counter(self.nodes)
            alike = min(max(everyone[node] / count for node, count in mine.items()),
                        self._shifted(ranks, max(everyone.values())))
            wire = min(self.network.effective / alike,
                       self.network.per_adapter * min(mine.values()))
            bandwidth = min(bandwidth, wire) if local > 1 else wire
        return Path(len(ranks), len(mine), bandwidth, max(link.latency for link in near),
                    self.network.latency, min(self.network.adapters, *mine.values()))

    def _shifted(self, ranks: Sequence[int], furthest: int) -> int:
        """How many groups of the same form lie on the same nodes rank by rank."""
        last, nodes = len(self.nodes), self.nodes
        return sum(all(0 <= rank + by < last and nodes[rank + by] == nodes[rank] for rank in ranks)
                   for by in range(1 - furthest, furthest))

    def local_index(self, rank: int) -> int:
        """Among the ranks of its node."""
        return self.nodes[:rank].count(self.nodes[rank])

    def slot(self, rank: int) -> int:
        """The number of its card on its node; ranks have them in order unless all are known."""
        return self.local_index(rank) if None in (self.slots or (None,)) else self.slots[rank]

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
        return replace(path, bandwidth=share * path.bandwidth)

    def describe(self) -> str:
        """The links, in a few words."""
        kinds = dict.fromkeys(f"{link.name} {link.bandwidth / 1e9:g} GB/s"
                              for link in map(within_node, dict.fromkeys(self.cards)))
        within = "within a node " + " or ".join(kinds)
        if len(set(self.nodes)) == 1:
            return within
        return f"{within}, between nodes {self.network.name}"
