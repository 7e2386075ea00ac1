"""Import large packages without the garbage collector, which would take a third of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_without_gc() -> Iterator[None]:
    """Disable the garbage collector for imports at a program's start.

    What is imported stays in memory, so it is also excluded from later collections. (Otherwise,
    torch alone adds 0.1 s to every full one.)
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
