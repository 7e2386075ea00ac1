"""The links between the GPUs of one node, and what rings and sends reach over them.

One rule covers them all: an NVLink carries an equal share of its GPU's NVLink bandwidth (25 GB/s
per direction on a V100, an A100, and an H100), and a ring or a send has the bandwidth of its links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from virtualgpu.core.card import Card
from virtualgpu.net import nodes
from virtualgpu.net.network import Link
from virtualgpu.net.nodes import NODES, PIX, PXB, SYS

NVLINK, PCIE, SHARED_MEMORY = "NVLink", "PCIe", "shared memory"


class GpuSlot(NamedTuple):
    """A GPU and its slot in the node."""

    card: Card
    slot: int


def nvlinks(one: GpuSlot, other: GpuSlot) -> int:
    """Return how many NVLinks connect two GPUs of a node."""
    if one.card.node != other.card.node or not (one.card.nvlink and other.card.nvlink):
        return 0
    return NODES[one.card.node].links_between(one.slot, other.slot)


def path(one: GpuSlot, other: GpuSlot) -> str:
    """Return how PCIe connects two GPUs of a node, as `nvidia-smi topo -m` names it."""
    if one.card.node != other.card.node:  # no real node mixes them
        return SYS
    node = NODES[one.card.node]
    return node.path(node.location(one.slot), node.location(other.slot))


def pair(one: GpuSlot, other: GpuSlot) -> Link:
    """Return the link that a send between two GPUs of a node uses."""
    count = nvlinks(one, other)
    return _nvlink((one, other), count) if count else _bus(one, other)


@lru_cache(maxsize=4096)
def ring(seats: tuple[GpuSlot, ...]) -> Link:
    """Return the bandwidth of all rings through the GPUs of a node, as one link.

    Where NVLinks close no ring through the GPUs, NCCL uses PCIe instead (Wang et al. 2020, Blink,
    arXiv:1910.04940), and the ring is as fast as its slowest hop.

    Args:
        seats: the GPUs. For a single GPU, the result combines all its links.
    """
    if len(seats) == 1:
        return port(seats[0].card)
    count = len(rings(seats))
    if count:
        return _nvlink(seats, count)
    order = sorted(seats, key=lambda seat: seat.slot)
    hops = [_bus(one, other) for one, other in zip(order, order[1:] + order[:1], strict=True)]
    return replace(min(hops, key=lambda link: link.effective),
                   latency=max(link.latency for link in hops))


def rings(seats: Sequence[GpuSlot]) -> tuple[tuple[int, ...], ...]:
    """Return the rings over NVLinks through the GPUs of a node, as slots; see nodes.rings."""
    kinds = {seat.card.node for seat in seats}
    if len(seats) < 2 or len(kinds) > 1 or not all(seat.card.nvlink for seat in seats):
        return ()
    return nodes.rings(kinds.pop(), tuple(seat.slot for seat in seats))


@lru_cache(maxsize=4096)
def slowest_pair(seats: tuple[GpuSlot, ...]) -> float:
    """Return the lowest bandwidth between any two GPUs of a group in a node, in bytes/s.

    Two GPUs without an NVLink between them send through another GPU of the group that both have
    one with (NCCL calls this path NVB).

    Args:
        seats: the GPUs of the group, two or more.
    """
    def reached(one: GpuSlot, other: GpuSlot) -> float:
        through = max(min(nvlinks(one, middle), nvlinks(middle, other))
                      for middle in seats) if not nvlinks(one, other) else 0
        link = _nvlink((one, other), through) if through else pair(one, other)
        return link.effective

    return min(reached(one, other) for one, other in combinations(seats, 2))


def port(card: Card) -> Link:
    """Return all links from one GPU to the others of its node, combined into one."""
    if card.nvlink:
        return _nvlink((GpuSlot(card, 0),), NODES[card.node].nvlinks)
    return _bus(GpuSlot(card, 0), GpuSlot(card, 0))


def _nvlink(seats: Sequence[GpuSlot], count: int) -> Link:
    slowest = min((seat.card for seat in seats),
                  key=lambda card: card.nvlink * card.efficiency.link)
    each = slowest.nvlink / NODES[slowest.node].nvlinks
    return Link(NVLINK, count * each, 2.5e-6, slowest.efficiency.link)


def _bus(one: GpuSlot, other: GpuSlot) -> Link:
    """Return the link over PCIe, or through the host's memory where NCCL does not use P2P.

    On Intel CPUs, NCCL uses P2P only below a common PCIe switch (ncclTopoCheckP2p in
    github.com/NVIDIA/nccl, src/graph/paths.cc), because the host's memory is faster than P2P
    through a host bridge (issue 896). The sender writes chunks into the host's memory while the
    receiver reads earlier ones, so every byte passes each GPU's PCIe link once, and the links'
    rate is reached (assumed; the author of NCCL reports 9 of PCIe 3's 12 GB/s between sockets,
    where their interconnect is the limit, issue 406).
    """
    slowest = min((one.card, other.card), key=lambda card: card.pcie * card.efficiency.link)
    share, connection = slowest.efficiency.link, path(one, other)
    if one.card.peer and other.card.peer and connection in (PIX, PXB):
        return Link(PCIE, slowest.pcie, 5e-6, share)
    memory = Link(SHARED_MEMORY, slowest.pcie, 8e-6, share)
    if connection != SYS:
        return memory
    slow = min(NODES[seat.card.node].interconnect for seat in (one, other))
    return min(memory, Link(SHARED_MEMORY, slow, 8e-6, 1.0), key=lambda link: link.effective)
