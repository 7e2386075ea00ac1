"""Write files atomically: readers see either the complete new file or the old one."""

from __future__ import annotations

import os
from pathlib import Path


def save(path: Path, text: str, mode: int | None = None) -> None:
    """Replace a file atomically; leave nothing behind if that fails.

    Args:
        path: path of the file.
        text: its new content.
        mode: its permissions; None for the usual ones.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text)
        if mode is not None:
            unfinished.chmod(mode)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
