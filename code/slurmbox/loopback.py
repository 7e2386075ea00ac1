"""Run all daemons on 127.0.0.1, the fallback if namespaces cannot be created."""

from __future__ import annotations

import contextlib
import random
import socket

from labcore.errors import LabError
from slurmbox.addresses import ClusterNetwork

# Below the range of ports that the kernel assigns by itself.
LOWEST, HIGHEST = 17000, 31999


def choose_ports(count: int, lowest: int = LOWEST, highest: int = HIGHEST) -> list[int]:
    """Return free TCP ports on 127.0.0.1, in random order, so two clusters can start at once.

    Args:
        count: the number of ports.
        lowest: the lowest port to try.
        highest: the highest port to try.

    Raises:
        LabError: there are not enough free ports.
    """
    ports: list[int] = []
    candidates = list(range(lowest, highest + 1))
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        if len(ports) == count:
            break
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.append(port)
    if len(ports) < count:
        raise LabError(f"loopback mode needs {count} free TCP ports on 127.0.0.1 between {lowest} "
                       f"and {highest}, but only {len(ports)} are free: end the programs that use "
                       "them, or start fewer nodes (--nodes 1)")
    return ports


def choose_network(nodes: int) -> ClusterNetwork:
    ports = choose_ports(nodes + 2)
    return ClusterNetwork("loopback", ports[0], ports[1], tuple(ports[2:]))
