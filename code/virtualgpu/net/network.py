"""Links between GPUs and networks between nodes.

Bandwidths are in bytes/s per direction, and latencies are those of one hop, in seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from virtualgpu.core.errors import VirtualGpuError


@dataclass(frozen=True)
class Link:
    """A link between GPUs, or between nodes.

    Attributes:
        name: name in log lines.
        bandwidth: line rate in bytes/s, of all adapters together.
        latency: latency of one hop, in seconds.
        share: the share of the line rate that NCCL reaches.
        adapters: number of a node's adapters that share the bandwidth.
    """

    name: str
    bandwidth: float
    latency: float
    share: float
    adapters: int = 1

    @property
    def effective(self) -> float:
        """The bandwidth that NCCL reaches, in bytes/s."""
        return self.bandwidth * self.share

    @property
    def per_adapter(self) -> float:
        """The bandwidth that NCCL reaches over one adapter, in bytes/s."""
        return self.effective / self.adapters


# Latency of a hop and share of the line rate, by the kind of network: sockets copy every byte
# through the kernel, InfiniBand reads and writes the GPUs' memory itself. Collectives and
# point-to-point sends have the same share: an all-reduce on 2 x 8 A100 reaches 86 of 100 GB/s
# (github.com/NVIDIA/nccl-tests issue 175), and sendrecv_perf reaches 42 to 45 of 50 GB/s between
# nodes of 8 B200 with a 400 Gbit/s adapter each (2 and 4 nodes, 16 MiB and more, NCCL 2.29,
# Together AI, 2026), and 24.2 of 25 GB/s on Slingshot (github.com/NVIDIA/nccl issue 1272). Not
# modeled: in the first of these fabrics, sends fall to 26 GB/s on 8 nodes and 14 on 16 and 32; and
# over sockets at 100 Gbit/s, one send reached 28 Gbit/s where an all-reduce reached 50 (V100, 2021,
# github.com/NVIDIA/nccl issue 464).
KINDS = {"ethernet": (30e-6, 0.92), "infiniband": (4e-6, 0.85)}
UNITS = {"mbit": 1e6 / 8, "gbit": 1e9 / 8}


def parse(text: str) -> Link:
    """Return the network that a text describes, such as ethernet:25gbit or infiniband:8x200gbit.

    The text has the kind of network, the number of a node's adapters, and the rate of each.

    Raises:
        VirtualGpuError: the text does not describe a network.
    """
    match = re.fullmatch(r"(?:(\w+):)?(?:(\d+)x)?(\d+(?:\.\d+)?)(mbit|gbit)", text.lower())
    kind = match and (match[1] or "ethernet")
    if not match or kind not in KINDS or float(match[3]) == 0 or match[2] == "0":
        raise VirtualGpuError(f"network {text!r}: a kind ({' or '.join(KINDS)}) and the bandwidth "
                              "of a node's adapters, such as ethernet:25gbit or "
                              "infiniband:8x200gbit")
    adapters = int(match[2] or 1)
    latency, share = KINDS[kind]
    count = f"{adapters} x " if adapters > 1 else ""
    title = f"{kind} {count}{match[3]} {match[4][0].upper()}bit/s"
    return Link(title, adapters * float(match[3]) * UNITS[match[4]], latency, share, adapters)
