"""Placements: an order of the nodes, which the ranks fill one node after the other, and its links.

Ranks are numbered as Megatron-LM does: tensor-parallel ranks are next to each other, then the
replicas of a stage, then the stages. So a stage has consecutive GPUs, and the order of the nodes
decides which GPU models it has.

The path between ranks depends on the nodes that they are on and on their slots there, and on no
other node, so placements share most of their paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, permutations
from math import factorial, inf, prod
from typing import TypeVar

from virtualgpu.core.card import Card
from virtualgpu.net import nccl, network
from virtualgpu.net.cluster_spec import NodeGroup
from virtualgpu.net.collectives import CommunicationPath, message
from virtualgpu.net.topology import Topology

MOST_ORDERS = 256
Kind = TypeVar("Kind")
Members = tuple[tuple[NodeGroup, tuple[int, ...]], ...]  # per node: its kind, and the slots used


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
    def nodes(self) -> tuple[int, ...]:
        """The number of every rank's node."""
        return ranks_of(self._per_node)[0]

    @cached_property
    def kinds(self) -> tuple[tuple[Card, ...], ...]:
        """The GPU models of all stages."""
        width, nodes = self.sizes.tensor * self.sizes.data, self.nodes
        return tuple(tuple(dict.fromkeys(self.order[node].card
                                         for node in dict.fromkeys(nodes[start:start + width])))
                     for start in range(0, len(nodes), width))

    @cached_property
    def seats(self) -> tuple[StageSeat, ...]:
        """The GPUs of all stages; equal stages of all placements have the same object."""
        p = self.sizes.pipeline
        return tuple(_seat(stage == 0, stage == p - 1, self.buffers[stage], self.data_path(stage),
                           self.kinds[stage]) for stage in range(p))

    @cached_property
    def _per_node(self) -> tuple[int, ...]:
        return tuple(group.per_node for group in self.order)

    def path(self, ranks: Sequence[int]) -> CommunicationPath:
        """Return the path of a collective of these ranks, as Topology.path does."""
        return path_of(self.link, self._members(ranks))

    def _members(self, ranks: Sequence[int]) -> Members:
        """Return the ranks as slots on their nodes, which is all that a path depends on."""
        return tuple((self.order[node], used) for node, used in slots_of(self._per_node, ranks))

    def data_path(self, stage: int) -> CommunicationPath | None:
        """Return the slowest path of a stage's data-parallel groups, or None with one replica."""
        tensor, data = self.sizes.tensor, self.sizes.data
        if data == 1:
            return None
        base = stage * tensor * data
        return self.path(range(base, base + tensor * data, tensor))

    @cached_property
    def ends_path(self) -> CommunicationPath:
        """The path between the first and the last stage's copies of the embedding."""
        return self.path((0, (self.sizes.pipeline - 1) * self.sizes.tensor * self.sizes.data))

    @cached_property
    def _boundaries(self) -> list[tuple[CommunicationPath, ...]]:
        """The distinct paths across each stage boundary, of all replicas; at last, the way back."""
        return [crossing(self.link, tuple(self.order[node] for node in nodes), pairs)
                for nodes, pairs in crossings(
                    self._per_node, self.sizes.tensor, self.sizes.tensor * self.sizes.data)]

    @cached_property
    def _sends(self) -> dict[int, list[float]]:
        return {}

    def send_seconds(self, size: int, wrap: bool = False) -> list[float]:
        """Return the time of a message across each stage boundary, by its slowest replica.

        Args:
            size: of the message, in bytes.
            wrap: whether to add the way from the last stage to the first.
        """
        if size not in self._sends:
            self._sends[size] = [max(message(path, size) for path in paths)
                                 for paths in self._boundaries]
        return self._sends[size] if wrap else self._sends[size][:-1]

    @cached_property
    def pipeline_buffers(self) -> list[int]:
        """NCCL's buffers of a chunk's two pipeline communicators on a rank of each stage, in bytes.
        """
        width = self.sizes.tensor * self.sizes.data
        pipeline = self._buffers(range(0, self.sizes.pipeline * width, width))
        return [2 * nccl.buffer_bytes(kinds[0], pipeline) for kinds in self.kinds]

    def _buffers(self, ranks: Sequence[int]) -> CommunicationPath:
        """Return a path with buffers as large as that of these ranks; equal nodes count once."""
        members = self._members(ranks)
        distinct = tuple(dict.fromkeys(members))
        return path_of(self.link, distinct * 2 if len(distinct) == 1 < len(members) else distinct)

    @cached_property
    def buffers(self) -> list[int]:
        """NCCL's buffers on a rank of each stage, in bytes, as layout_estimator.memory counts them.
        """
        sizes, width = self.sizes, self.sizes.tensor * self.sizes.data
        world, last = sizes.pipeline * width, sizes.pipeline - 1
        across = range(0, world, width)
        if last:
            model = self._buffers(range(world) if sizes.data == 1 else
                                  tuple(at + one for at in across for one in range(sizes.tensor)))
            ends = self._buffers(range(0, world, last * width))
        totals = []
        for stage, (rank, kinds) in enumerate(zip(across, self.kinds, strict=True)):
            groups = {range(rank, rank + width, sizes.tensor), range(rank, rank + sizes.tensor)}
            paths = [self._buffers(group) for group in groups if len(group) > 1]
            if last:
                paths += [model, ends] if stage in (0, last) else [model]
            totals.append(sum(nccl.buffer_bytes(kinds[0], path) for path in paths))
        return [one + more for one, more in zip(totals, self.pipeline_buffers, strict=True)
                ] if last else totals


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
    seen, numbers = set(), {id(group): number for number, (group, _) in enumerate(used)}
    for order in orders(dict(used), MOST_ORDERS):
        made = Placement(sizes, order, link)
        key = _signature(made, numbers)
        if key not in seen:
            seen.add(key)
            yield made


def count_orders(counts: Mapping[Kind, int]) -> int:
    """Return the number of distinct orders of things of several kinds, {kind: how many}."""
    return factorial(sum(counts.values())) // prod(map(factorial, counts.values()))


def orders(counts: Mapping[Kind, int], most: float = inf) -> Iterator[tuple[Kind, ...]]:
    """Yield distinct orders of things of several kinds.

    Args:
        counts: how many things of each kind.
        most: if there are more orders, only those that keep each kind together.
    """
    if count_orders(counts) <= most:
        yield from _every_order(counts)
    else:
        for blocks in permutations(counts):
            yield tuple(kind for kind in blocks for _ in range(counts[kind]))


def _every_order(counts: Mapping[Kind, int]) -> Iterator[tuple[Kind, ...]]:
    if not any(counts.values()):
        yield ()
    for kind, left in counts.items():
        if left:
            for rest in _every_order({**counts, kind: left - 1}):
                yield (kind, *rest)


def _signature(made: Placement, numbers: Mapping[int, int]) -> tuple:
    """Return what decides a placement's cost: each stage's GPUs, by the node that they share.

    Args:
        made: the placement.
        numbers: a number for each node group, by the id of its object.
    """
    kinds = [numbers[id(group)] for group in made.order]
    pieces_of = _pieces(tuple(group.per_node for group in made.order),
                        made.sizes.tensor * made.sizes.data)
    per_stage = []
    for joins, ends_node, on_nodes in pieces_of:
        pieces = [(kinds[node], count) for node, count in on_nodes]
        # A node that two stages share matters to both.
        pieces = sorted(pieces) if ends_node else [
            pieces[0], *sorted(pieces[1:-1]), *pieces[1:][-1:]]
        per_stage.append((joins, tuple(pieces)))
    return tuple(per_stage)


@lru_cache(maxsize=4096)
def _pieces(per_node: tuple[int, ...], width: int
            ) -> tuple[tuple[bool, bool, tuple[tuple[int, int], ...]], ...]:
    """Return for each stage: whether it shares its first node with the stage before it, whether it
    shares no node, and its number of GPUs on each node."""
    nodes, _ = ranks_of(per_node)
    stages = []
    for start in range(0, len(nodes), width):
        here = nodes[start:start + width]
        joins = start > 0 and nodes[start] == nodes[start - 1]
        alone = not joins and (start + width >= len(nodes) or nodes[start + width] != here[-1])
        stages.append((joins, alone, tuple((node, here.count(node))
                                           for node in dict.fromkeys(here))))
    return tuple(stages)


@lru_cache(maxsize=4096)
def ranks_of(per_node: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the node and the slot of every rank."""
    places = [(node, slot) for node, count in enumerate(per_node) for slot in range(count)]
    nodes, slots = zip(*places, strict=True)
    return nodes, slots


def _topology(link: str, members: Members) -> tuple[Topology, list[int]]:
    """Return these nodes alone, and the ranks on them."""
    nodes = [str(number) for number, (group, _) in enumerate(members)
             for _ in range(group.per_node)]
    cards = [group.card for group, _ in members for _ in range(group.per_node)]
    firsts = accumulate((group.per_node for group, _ in members), initial=0)
    ranks = [first + slot for first, (_, slots) in zip(firsts, members, strict=False)
             for slot in slots]
    return Topology(tuple(nodes), tuple(cards), network.parse(link)), ranks


@lru_cache(maxsize=65536)
def path_of(link: str, members: Members) -> CommunicationPath:
    topology, ranks = _topology(link, members)
    return topology.path(ranks)


@lru_cache(maxsize=65536)
def slots_of(per_node: tuple[int, ...], ranks: Sequence[int]
           ) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the nodes of these ranks, with the slots that the ranks have on them."""
    nodes, slots = ranks_of(per_node)
    by_node: dict[int, list[int]] = {}
    for rank in ranks:
        by_node.setdefault(nodes[rank], []).append(slots[rank])
    return tuple((node, tuple(used)) for node, used in by_node.items())


@lru_cache(maxsize=4096)
def crossings(per_node: tuple[int, ...], tensor: int, width: int
              ) -> list[tuple[tuple[int, ...], tuple[tuple[int, int, int, int], ...]]]:
    """Return for each stage boundary, and for the way from the last stage back to the first: the
    nodes, and each replica's sender and receiver as (index of the node, slot) pairs."""
    nodes, slots = ranks_of(per_node)
    found, stages = [], len(nodes) // width
    for stage in range(stages) if stages > 1 else ():
        ends = [(at, (at + width) % len(nodes))
                for at in range(stage * width, (stage + 1) * width, tensor)]
        here = list(dict.fromkeys(nodes[rank] for pair in ends for rank in pair))
        found.append((tuple(here), tuple(
            (here.index(nodes[one]), slots[one], here.index(nodes[other]), slots[other])
            for one, other in ends)))
    return found


@lru_cache(maxsize=65536)
def crossing(link: str, groups: tuple[NodeGroup, ...], pairs: tuple[tuple[int, int, int, int], ...]
              ) -> tuple[CommunicationPath, ...]:
    """Return the distinct paths of the replicas of a stage boundary.

    Args:
        link: the network between nodes.
        groups: of the nodes.
        pairs: each replica's sender and receiver, as crossings returns them.
    """
    return tuple({
        _wire(link, ((groups[one], (slot,)), (groups[other], (to,))) if one != other else
              ((groups[one], (slot, to)),)) for one, slot, other, to in pairs})


@lru_cache(maxsize=65536)
def _wire(link: str, members: Members) -> CommunicationPath:
    topology, ranks = _topology(link, members)
    return topology.p2p_path(*ranks)
