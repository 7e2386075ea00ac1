"""The GPUs that a program runs on: their model, their number, and the network between nodes."""

from __future__ import annotations

from dataclasses import dataclass

from virtualgpu.core import cards, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.errors import UnknownCard, VirtualGpuError
from virtualgpu.net import network
from virtualgpu.net.nodes import max_gpus
from virtualgpu.net.topology import Topology

EXAMPLE_GPUS = 8  # per node, in an error message


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal GPUs.

    Attributes:
        card: the GPU model, with the efficiency of a software stack.
        per_node: GPUs per node.
        nodes: number of nodes.
        link: the network between nodes, in the form that network.parse reads.
    """

    card: Card
    per_node: int
    nodes: int
    link: str

    @property
    def world(self) -> int:
        """Number of ranks of a job on all GPUs."""
        return self.per_node * self.nodes

    def topology(self) -> Topology:
        names = tuple(f"node{rank // self.per_node}" for rank in range(self.world))
        return Topology(names, (self.card,) * self.world, network.parse(self.link))

    def __str__(self) -> str:
        title = f"{self.world} x virtual {self.card.name}"
        if self.nodes == 1:
            return title
        return f"{title} on {self.nodes} nodes ({network.parse(self.link).name})"


def parse(gpus: str, nodes: int = 1, link: str | None = None, stack: str = stacks.DEFAULT
          ) -> Cluster:
    """Parse the options of virtualrun that describe the GPUs.

    Args:
        gpus: GPU model and GPUs per node, such as h100:8.
        nodes: number of nodes.
        link: the network between them; None for the default of these GPUs.
        stack: name of the software stack (stacks.py).

    Raises:
        VirtualGpuError: an option is invalid; the message names it.
    """
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
    try:
        network.parse(link or card.network)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--link {link}: {error}") from None
    try:
        software = stacks.find_stack(stack)
    except VirtualGpuError as error:
        raise VirtualGpuError(f"--stack {stack}: {error}") from None
    return Cluster(stacks.under(card, software), count, nodes, link or card.network)
