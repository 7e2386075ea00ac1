"""Placements: an order of the nodes, which the ranks fill one node after the other.

Ranks are numbered as Megatron-LM does: tensor-parallel ranks are next to each other, then the
replicas of a stage, then the stages. So a stage has consecutive GPUs, and the order of the nodes
decides which GPU models it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import permutations
from math import factorial, prod

from virtualgpu.core.card import Card
from virtualgpu.net import nccl, network
from virtualgpu.net.cluster_spec import NodeGroup
from virtualgpu.net.collectives import CommunicationPath, message
from virtualgpu.net.topology import Topology

MOST_ORDERS = 256


@dataclass(frozen=True)
class ParallelSizes:
    """Sizes of the groups of ranks."""

    tensor: int
    pipeline: int
    data: int


@dataclass(frozen=True, eq=False)  # compared by identity, because it is a key of caches
class StageSeat:
    """The GPUs of a stage, and what depends on them alone.

    Attributes:
        first: whether it has the embedding.
        last: whether it has the head.
        buffers: bytes of NCCL's buffers.
        path: of its data-parallel groups, or None with one replica.
        kinds: its GPU models.
    """

    first: bool
    last: bool
    buffers: int
    path: CommunicationPath | None
    kinds: tuple[Card, ...]


_seat = lru_cache(maxsize=65536)(StageSeat)


@dataclass(frozen=True)
class Placement:
    """A layout's ranks on nodes.

    Attributes:
        sizes: the layout.
        order: the node group of every node, in the order of the ranks.
        link: the network between nodes, in the form that network.parse reads.
    """

    sizes: ParallelSizes
    order: tuple[NodeGroup, ...]
    link: str

    @cached_property
    def topology(self) -> Topology:
        """The ranks on their nodes."""
        return _topology(self.order, self.link)

    @cached_property
    def kinds(self) -> tuple[tuple[Card, ...], ...]:
        """The GPU models of all stages."""
        width, cards = self.sizes.tensor * self.sizes.data, self.topology.cards
        return tuple(tuple(dict.fromkeys(cards[start:start + width]))
                     for start in range(0, len(cards), width))

    @cached_property
    def seats(self) -> tuple[StageSeat, ...]:
        """The GPUs of all stages; equal stages of all placements have the same object."""
        p = self.sizes.pipeline
        return tuple(_seat(stage == 0, stage == p - 1, self.buffer_bytes(stage),
                           self.data_path(stage), self.kinds[stage]) for stage in range(p))

    def data_path(self, stage: int) -> CommunicationPath | None:
        """Return the slowest path of a stage's data-parallel groups, or None with one replica."""
        tensor, data = self.sizes.tensor, self.sizes.data
        if data == 1:
            return None
        base = stage * tensor * data
        return _path(self.topology, tuple(base + tensor * replica for replica in range(data)))

    @cached_property
    def ends_path(self) -> CommunicationPath:
        """The path between the first and the last stage's copies of the embedding."""
        return _path(self.topology,
                     (0, (self.sizes.pipeline - 1) * self.sizes.tensor * self.sizes.data))

    @cached_property
    def _boundaries(self) -> list[set[CommunicationPath]]:
        """The distinct paths across each stage boundary, of all replicas."""
        tensor, width = self.sizes.tensor, self.sizes.tensor * self.sizes.data
        return [{_wire(self.topology, at, at + width)
                 for at in range(stage * width, (stage + 1) * width, tensor)}
                for stage in range(self.sizes.pipeline - 1)]

    def send_seconds(self, size: int) -> list[float]:
        """Return the time of a message across each stage boundary, by its slowest replica.

        Args:
            size: of the message, in bytes.
        """
        return [max(message(path, size) for path in paths) for paths in self._boundaries]

    def buffer_bytes(self, stage: int) -> int:
        """Return NCCL's buffers on a rank of a stage, in bytes, as layout_estimator.memory does."""
        sizes, world = self.sizes, len(self.topology.nodes)
        width = sizes.tensor * sizes.data
        rank, card = stage * width, self.topology.cards[stage * width]

        def size(ranks: range) -> int:
            many = len(ranks) > 1
            return nccl.buffer_bytes(card, _path(self.topology, tuple(ranks))) if many else 0

        pipeline = range(0, world, width)
        groups = {range(rank, rank + width, sizes.tensor), range(rank, rank + sizes.tensor)}
        total = sum(map(size, groups))
        if sizes.pipeline > 1:
            model = tuple(at + one for at in pipeline for one in range(sizes.tensor))
            total += nccl.buffer_bytes(card, _path(self.topology, model)) + 2 * size(pipeline)
            if stage in (0, sizes.pipeline - 1):
                total += size(range(0, world, (sizes.pipeline - 1) * width)[:2])
        return total


@lru_cache(maxsize=4096)
def _topology(order: tuple[NodeGroup, ...], link: str) -> Topology:
    nodes = tuple(str(number) for number, group in enumerate(order) for _ in range(group.per_node))
    cards = tuple(group.card for group in order for _ in range(group.per_node))
    return Topology(nodes, cards, network.parse(link))


@lru_cache(maxsize=65536)
def _path(topology: Topology, ranks: tuple[int, ...]) -> CommunicationPath:
    return topology.path(ranks)


@lru_cache(maxsize=65536)
def _wire(topology: Topology, source: int, target: int) -> CommunicationPath:
    return topology.p2p_path(source, target)


def slowest_network(groups: Sequence[NodeGroup]) -> str:
    """Return the network that all nodes can use: the slowest that one of them comes with."""
    return min((group.card.network for group in groups),
               key=lambda text: network.parse(text).effective)


def placements(used: Sequence[tuple[NodeGroup, int]], sizes: ParallelSizes, link: str
               ) -> Iterator[Placement]:
    """Yield placements of which no two give every stage the same GPUs.

    All of them, if there are at most MOST_ORDERS orders of the nodes; otherwise those that keep the
    nodes of a kind together.

    Args:
        used: each group with the number of its nodes that the run uses.
        sizes: the layout; its ranks are as many as the GPUs.
        link: the network between nodes.
    """
    seen = set()
    for order in _orders(used):
        made = Placement(sizes, order, link)
        key = _signature(made)
        if key not in seen:
            seen.add(key)
            yield made


def count_orders(used: Sequence[tuple[NodeGroup, int]]) -> int:
    """Return the number of distinct orders of the nodes."""
    counts = [count for _, count in used]
    return factorial(sum(counts)) // prod(map(factorial, counts))


def _orders(used: Sequence[tuple[NodeGroup, int]]) -> Iterator[tuple[NodeGroup, ...]]:
    if count_orders(used) > MOST_ORDERS:
        for blocks in permutations(used):
            yield tuple(group for group, count in blocks for _ in range(count))
        return
    left = {group: count for group, count in used if count}

    def extend(order: tuple[NodeGroup, ...]) -> Iterator[tuple[NodeGroup, ...]]:
        if not any(left.values()):
            yield order
        for group in left:
            if left[group]:
                left[group] -= 1
                yield from extend((*order, group))
                left[group] += 1

    yield from extend(())


def _signature(made: Placement) -> tuple:
    """Return what decides a placement's cost: each stage's GPUs, by the node that they share."""
    width, nodes = made.sizes.tensor * made.sizes.data, made.topology.nodes
    numbers = {group: number for number, group in enumerate(sorted(set(made.order), key=str))}
    per_stage = []
    for start in range(0, len(nodes), width):
        here = nodes[start:start + width]
        pieces = [(numbers[made.order[int(node)]], here.count(node))
                  for node in dict.fromkeys(here)]
        inner = sorted(pieces[1:-1])
        # A node that two stages share matters to both.
        joins = start > 0 and nodes[start] == nodes[start - 1]
        if not joins and (start + width >= len(nodes) or nodes[start + width] != here[-1]):
            pieces = sorted(pieces)
        else:
            pieces = [pieces[0], *inner, *pieces[1:][-1:]]
        per_stage.append((joins, tuple(pieces)))
    return tuple(per_stage)
