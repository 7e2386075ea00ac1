"""Write files atomically: readers see either the complete new file or the old one."""

from __future__ import annotations

import os
from pathlib import Path


def save(path: Path, text: str) -> None:
    """Replace a file atomically; leave nothing behind if that fails."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
