"""The GPUs that a program runs on: which, how many, and what connects their nodes."""

from __future__ import annotations

from dataclasses import dataclass

from virtualgpu.core import cards, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.errors import UnknownCard, VirtualGpuError
from virtualgpu.net import network
from virtualgpu.net.nodes import most_gpus
from virtualgpu.net.topology import Topology

SEVERAL = 8  # GPUs in the node of an example


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal GPUs.

    Attributes:
        card: the GPU model, under a software stack.
        per_node: GPUs on each node.
        nodes: how many.
        link: the network between nodes, as network.parse reads it.
    """

    card: Card
    per_node: int
    nodes: int
    link: str

    @property
    def world(self) -> int:
        """Ranks of a job on all GPUs."""
        return self.per_node * self.nodes

    def topology(self) -> Topology:
        names = tuple(f"node{rank // self.per_node}" for rank in range(self.world))
        return Topology(names, (self.card,) * self.world, network.parse(self.link))

    def __str__(self) -> str:
        title = f"{self.world} x virtual {self.card.name}"
        if self.nodes == 1:
            return title
        return f"{title} on {self.nodes} nodes ({network.parse(self.link).name})"


def parse(gpus: str, nodes: int = 1, link: str | None = None, stack: str = stacks.PLAIN
          ) -> Cluster:
    """Read `h100:8`: a GPU model, and how many of them each node has.

    Args:
        gpus: the model and the number.
        nodes: how many nodes.
        link: the network between them; None: the one that is usual with these GPUs.
        stack: name of the software stack (stacks.py).

    Raises VirtualGpuError, which names the option.
    """
    name, _, number = gpus.partition(":")
    try:
        card = cards.find(name)
    except UnknownCard as error:
        raise UnknownCard(f"--gpus {gpus}: {error}") from None
    if number and not (number.isdecimal() and int(number)):
        raise VirtualGpuError(f"--gpus {gpus}: the number of GPUs on a node must be 1 or more, as "
                              f"in --gpus {name}:{SEVERAL}")
    count = int(number or 1)
    most, reason = most_gpus(card)
    if count > most:
        raise VirtualGpuError(f"--gpus {gpus}: {reason}; nearest: --gpus {name}:{most}")
    if nodes < 1:
        raise VirtualGpuError(f"--nodes {nodes}: there must be 1 node or more")
    try:
        network.parse(link or card.network)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--link {link}: {error}") from None
    try:
        software = stacks.find_stack(stack)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--stack {stack}: {error}") from None
    return Cluster(stacks.under(card, software), count, nodes, link or card.network)
