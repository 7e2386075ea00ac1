"""The fallback where nodes of their own cannot be made: all daemons on 127.0.0.1."""

from __future__ import annotations

import contextlib
import random
import socket

from labcore.errors import LabError
from slurmbox.place import Place

# Below the range from which the kernel gives ports to programs that name none.
LOWEST, HIGHEST = 17000, 31999


def choose_ports(count: int, lowest: int = LOWEST, highest: int = HIGHEST) -> list[int]:
    """Free TCP ports; two clusters that start at once look in different places."""
    found: list[int] = []
    candidates = list(range(lowest, highest + 1))
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        if len(found) == count:
            break
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise LabError(f"loopback mode needs {count} free TCP ports on 127.0.0.1 between {lowest} "
                       f"and {highest}, found {len(found)}: end what uses them, or ask for fewer "
                       "nodes (--nodes 1)")
    return found


def place(nodes: int) -> Place:
    ports = choose_ports(nodes + 2)
    return Place("loopback", ports[0], ports[1], tuple(ports[2:]))
