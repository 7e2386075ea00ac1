"""What lies between cards: links within a node, and the network between nodes.

Bandwidths are bytes per second in one direction, latencies seconds of one hop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from virtualgpu.core.card import Card
from virtualgpu.core.errors import VirtualGpuError

NVLINK, PCIE, SHARED_MEMORY = "NVLink", "PCIe", "shared memory"


@dataclass(frozen=True)
class Link:
    """bandwidth: what the data sheet says. share: what messages reach of it."""

    name: str
    bandwidth: float
    latency: float
    share: float

    @property
    def effective(self) -> float:
        return self.bandwidth * self.share


# Latency of a hop and share of the bandwidth, by the kind of network: sockets copy every byte
# through the kernel, InfiniBand reads and writes the cards' memory itself.
KINDS = {"ethernet": (30e-6, 0.92), "infiniband": (4e-6, 0.85)}
UNITS = {"mbit": 1e6 / 8, "gbit": 1e9 / 8}


def parse(text: str) -> Link:
    """`ethernet:25gbit`, `infiniband:8x200gbit`: the kind, and all a node's adapters together.

    Raises VirtualGpuError.
    """
    found = re.fullmatch(r"(?:(\w+):)?(?:(\d+)x)?(\d+(?:\.\d+)?)(mbit|gbit)", text.lower())
    kind = found and (found[1] or "ethernet")
    if not found or kind not in KINDS or float(found[3]) == 0 or found[2] == "0":
        raise VirtualGpuError(f"network {text!r}: a kind ({' or '.join(KINDS)}) and the bandwidth "
                              "of a node's adapters, such as ethernet:25gbit or "
                              "infiniband:8x200gbit")
    adapters = int(found[2] or 1)
    latency, share = KINDS[kind]
    times = f"{adapters} x " if adapters > 1 else ""
    title = f"{kind} {times}{found[3]} {found[4][0].upper()}bit/s"
    return Link(title, adapters * float(found[3]) * UNITS[found[4]], latency, share)


def within_node(card: Card) -> Link:
    """How cards of one node reach each other."""
    if card.nvlink:
        return Link(NVLINK, card.nvlink, 2.5e-6, card.efficiency.link)
    if card.peer:
        return Link(PCIE, card.pcie, 5e-6, card.efficiency.link)
    # Through the host's memory every byte passes the bus twice.
    return Link(SHARED_MEMORY, card.pcie / 2, 8e-6, card.efficiency.link)
