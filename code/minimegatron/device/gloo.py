"""What NCCL_DEBUG=INFO shows of a run on the CPU: there is no NCCL, and gloo says nothing itself.

gloo has no rings of its own to set up: every rank of a group connects to every other one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence


def debug_asked() -> bool:
    """Whether NCCL_DEBUG asks for lines like these, on any device."""
    return os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")


def lines(ranks: Sequence[int], index: int) -> list[str]:
    """One for each peer of one rank of a group. ranks: of the job. index: this rank's in them."""
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    over = f"TCP ({interface})" if interface else "TCP"
    head = f"{node}:{os.getpid()}:{threading.get_native_id()} gloo INFO"
    return [f"{head} group of rank(s) {','.join(map(str, ranks))} : "
            f"{ranks[index]} -> {peer} over {over}" for peer in ranks if peer != ranks[index]]
