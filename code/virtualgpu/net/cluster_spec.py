"""Parse a cluster's kinds of nodes and their counts, such as a100:4x2,a10:4x4."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from virtualgpu.core import cards
from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.nodes import max_gpus

MAX_NODES = 4096
EXAMPLE = "a100:4x2,a10:4x4"


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes of a cluster.

    Attributes:
        card: the GPU model of all their GPUs.
        per_node: GPUs per node.
        nodes: number of nodes.
    """

    card: Card
    per_node: int
    nodes: int

    @property
    def gpus(self) -> int:
        """Number of GPUs on all nodes."""
        return self.per_node * self.nodes

    def __str__(self) -> str:
        return f"{self.card.name}:{self.per_node}x{self.nodes}"


def parse_nodes(text: str) -> tuple[NodeGroup, ...]:
    """Return the nodes that a string describes, in its order; equal neighbors form one group.

    Each group is KIND:GPUSxNODES. So a100:4x2,a10:4x4 has two nodes of four A100 GPUs each and four
    nodes of four A10 GPUs each; a100:4 is a single node. A kind may occur again, as in
    a100:4x1,a10:4x4,a100:4x1.

    Raises:
        VirtualGpuError: the string is invalid; the message names the nearest valid one.
    """
    runs = groupby(map(_group, text.split(",")), key=lambda group: (group.card, group.per_node))
    return tuple(NodeGroup(*key, sum(group.nodes for group in run)) for key, run in runs)


def parse_cluster(text: str) -> tuple[NodeGroup, ...]:
    """Return the kinds of nodes that a string describes, for a run that chooses their order.

    Raises:
        VirtualGpuError: the string is invalid, or names a kind of node twice; the message names the
            nearest valid one.
    """
    seen: dict[tuple[Card, int], NodeGroup] = {}
    for group in map(_group, text.split(",")):
        key = group.card, group.per_node
        if key in seen:
            total = NodeGroup(*key, seen[key].nodes + group.nodes)
            raise VirtualGpuError(f"cluster {text!r} names nodes of {group.per_node} "
                                  f"{group.card.name} twice; nearest: {total}")
        seen[key] = group
    return tuple(seen.values())


def _group(part: str) -> NodeGroup:
    match = re.fullmatch(r"([a-z0-9][a-z0-9-]*):(\d+)(?:x(\d+))?", part.strip().lower())
    if not match:
        raise VirtualGpuError(f"cluster {part!r}: expected KIND:GPUSxNODES for each kind of node; "
                              f"nearest: {EXAMPLE}")
    kind, per_node, nodes = match[1], int(match[2]), int(match[3] or 1)
    try:
        card = cards.find(kind)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"cluster {part!r}: {error}") from error
    most, reason = max_gpus(card)
    if not 1 <= per_node <= most:
        raise VirtualGpuError(f"cluster {part!r}: {reason}; nearest: "
                              f"{kind}:{min(max(per_node, 1), most)}x{max(nodes, 1)}")
    if not 1 <= nodes <= MAX_NODES:
        raise VirtualGpuError(f"cluster {part!r}: expected 1 to {MAX_NODES} nodes; nearest: "
                              f"{kind}:{per_node}x{min(max(nodes, 1), MAX_NODES)}")
    return NodeGroup(card, per_node, nodes)
