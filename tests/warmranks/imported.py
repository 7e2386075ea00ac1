"""A module that records which process imported it."""

from __future__ import annotations

import os
from pathlib import Path

PROCESS = os.getpid()


def seen_from_a_rank() -> tuple[int, int, list[str]]:
    """Return the process that imported this module, the server's, and the server's open files."""
    server = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    files = Path(f"/proc/{server}/fd").iterdir()
    return PROCESS, server, sorted(os.readlink(file).partition(":")[0] for file in files)
