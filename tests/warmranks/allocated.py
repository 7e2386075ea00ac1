"""Memory of a fork server, and what a fork sees of it."""

from __future__ import annotations

import re
from pathlib import Path

PATTERN = bytes(range(256))
DATA = PATTERN * (8 << 12)  # 8 MiB, which the server has from its start


def huge_memory() -> tuple[int, bool]:
    """Return how much of this process is in huge pages, in KiB, and whether its data is correct."""
    text = Path("/proc/self/smaps_rollup").read_text()
    (size,) = re.findall(r"AnonHugePages: +(\d+) kB", text)
    return int(size), PATTERN * (8 << 12) == DATA
