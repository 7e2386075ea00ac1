"""Ports for tests that run side by side, in workers of one suite or in several suites."""

from __future__ import annotations

import random
import socket

# Below what the kernel gives to whoever asks for any port, and off the first of a range, where
# programs that count up from there begin.
PORTS = range(20000, 30000)
DRAW = random.SystemRandom()  # hypothesis seeds the common one


def free_port() -> int:
    """One that nobody has now, on all addresses. Raises OSError where none is free."""
    for port in DRAW.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
