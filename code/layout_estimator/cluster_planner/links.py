"""The links between the ranks of a placement.

A path depends on the nodes that its ranks are on and on their slots there, and on no other node, so
placements share most of their paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from virtualgpu.net import network
from virtualgpu.net.cluster_spec import NodeGroup
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.topology import Topology

Members = tuple[tuple[NodeGroup, tuple[int, ...]], ...]  # per node: its kind, and the slots used


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
        pairs: each replica's sender and receiver, as _crossings returns them.
    """
    return tuple({
        _wire(link, ((groups[one], (slot,)), (groups[other], (to,))) if one != other else
              ((groups[one], (slot, to)),)) for one, slot, other, to in pairs})


@lru_cache(maxsize=65536)
def _wire(link: str, members: Members) -> CommunicationPath:
    topology, ranks = _topology(link, members)
    return topology.p2p_path(*ranks)
