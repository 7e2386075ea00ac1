"""Ranks that start programs and never end. Nothing here imports torch."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


def rank() -> str:
    return os.environ["RANK"]


def start(folder: str) -> None:
    """Leave two programs running, one of them in a session of its own; write all process ids."""
    for name in ("child", "daemon"):
        program = subprocess.Popen(["sleep", "1000"], start_new_session=name == "daemon")
        Path(folder, f"{name}{rank()}").write_text(str(program.pid))
    Path(folder, f"rank{rank()}").write_text(str(os.getpid()))
    time.sleep(1000)
