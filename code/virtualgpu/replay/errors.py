"""Why a record is refused."""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError


class BadRecord(VirtualGpuError):
    """A record that no program on a virtual GPU can have left; the text names rank and entry."""
