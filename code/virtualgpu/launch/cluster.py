"""The GPUs that a program runs on: their model, their number, and the network between nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from virtualgpu.core import cards, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.errors import UnknownCard, VirtualGpuError
from virtualgpu.net import network
from virtualgpu.net.cluster_spec import parse_nodes
from virtualgpu.net.nodes import max_gpus
from virtualgpu.net.topology import Topology

EXAMPLE_GPUS = 8  # per node, in an error message


@dataclass(frozen=True)
class Cluster:
    """Nodes with equally many GPUs; those of one node are equal.

    Attributes:
        cards: the GPU model of each node, with the efficiency of a software stack.
        per_node: GPUs per node.
        link: the network between nodes, in the form that network.parse reads.
    """

    cards: tuple[Card, ...]
    per_node: int
    link: str

    @property
    def card(self) -> Card:
        """The GPU model of the first node."""
        return self.cards[0]

    @property
    def kinds(self) -> tuple[Card, ...]:
        """Each GPU model once, in the order of the nodes."""
        return tuple(dict.fromkeys(self.cards))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.cards)

    @property
    def world(self) -> int:
        """Number of ranks of a job on all GPUs."""
        return self.per_node * self.nodes

    def card_of(self, rank: int) -> Card:
        """Return the GPU model of a rank."""
        return self.cards[rank // self.per_node]

    @property
    def representatives(self) -> tuple[int, ...]:
        """The first rank of each sequence of equal nodes, which can stand for the others."""
        return tuple(rank for rank in range(self.world)
                     if rank == 0 or self.card_of(rank) != self.card_of(rank - 1))

    def require_representatives(self, present: Sequence[int] | None) -> None:
        """Raise VirtualGpuError unless each absent rank's GPU is modeled by one of its own model.

        Args:
            present: the ranks that are processes, the lowest first; None for all ranks.
        """
        if present is None or len(self.kinds) == 1:
            return
        if missing := sorted(set(self.representatives).difference(present)):
            first, enough = missing[0], sorted({*self.representatives, *present})
            raise VirtualGpuError(
                f"of {self}, only rank(s) {', '.join(map(str, present))} would be processes, and "
                f"rank {first} has another GPU model ({self.card_of(first).name}) than the rank "
                f"that would stand for it; nearest: --present {','.join(map(str, enough))}")

    def topology(self) -> Topology:
        names = tuple(f"node{rank // self.per_node}" for rank in range(self.world))
        cards = tuple(map(self.card_of, range(self.world)))
        return Topology(names, cards, network.parse(self.link))

    def __str__(self) -> str:
        title = " + ".join(f"{self.per_node * self.cards.count(card)} x virtual {card.name}"
                           for card in self.kinds)
        if self.nodes == 1:
            return title
        return f"{title} on {self.nodes} nodes ({network.parse(self.link).name})"


def parse(gpus: str, nodes: int = 1, link: str | None = None, stack: str = stacks.DEFAULT
          ) -> Cluster:
    """Parse the options of virtualrun that describe the GPUs.

    Args:
        gpus: GPU model and GPUs per node, such as h100:8, or the kinds of nodes and their numbers,
            such as a100:4x2,a10:4x4.
        nodes: number of nodes, unless `gpus` has it.
        link: the network between them; None for the default of these GPUs, the slowest if several.
        stack: name of the software stack (stacks.py).

    Raises:
        VirtualGpuError: an option is invalid; the message names it.
    """
    mixed = re.search(r",|:\d+x", gpus)
    cards_of_nodes, per_node = (_mixed if mixed else _equal)(gpus, nodes)
    usual = min((card.network for card in cards_of_nodes),
                key=lambda text: network.parse(text).effective)
    try:
        network.parse(link or usual)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--link {link}: {error}") from None
    try:
        software = stacks.find_stack(stack)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--stack {stack}: {error}") from None
    efficient = tuple(stacks.under(card, software) for card in cards_of_nodes)
    return Cluster(efficient, per_node, link or usual)


def _equal(gpus: str, nodes: int) -> tuple[tuple[Card, ...], int]:
    """Return the GPU model of each node, and the GPUs per node, from MODEL:N."""
    name, _, number = gpus.partition(":")
    try:
        card = cards.find(name)
    except UnknownCard as error:
        raise UnknownCard(f"--gpus {gpus}: {error}") from None
    if number and not (number.isdecimal() and int(number)):
        raise VirtualGpuError(f"--gpus {gpus}: the number of GPUs on a node must be 1 or more, as "
                              f"in --gpus {name}:{EXAMPLE_GPUS}")
    count = int(number or 1)
    most, reason = max_gpus(card)
    if count > most:
        raise VirtualGpuError(f"--gpus {gpus}: {reason}; nearest: --gpus {name}:{most}")
    if nodes < 1:
        raise VirtualGpuError(f"--nodes {nodes}: expected 1 or more; nearest: --nodes 1")
    return (card,) * nodes, count


def _mixed(gpus: str, nodes: int) -> tuple[tuple[Card, ...], int]:
    """Return the GPU model of each node, and the GPUs per node, from MODEL:NxNODES,..."""
    try:
        groups = parse_nodes(gpus)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--gpus {gpus}: {error}") from None
    if nodes != 1:
        raise VirtualGpuError(f"--nodes {nodes}: --gpus {gpus} already has the number of nodes of "
                              "each kind; leave out --nodes")
    least = min(group.per_node for group in groups)
    if any(group.per_node != least for group in groups):
        nearest = ",".join(str(replace(group, per_node=least)) for group in groups)
        raise VirtualGpuError(f"--gpus {gpus}: all nodes must have equally many GPUs; nearest: "
                              f"--gpus {nearest}")
    return tuple(group.card for group in groups for _ in range(group.nodes)), least
