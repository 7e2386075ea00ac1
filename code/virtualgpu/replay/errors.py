"""The error of a record that is rejected."""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError


class BadRecord(VirtualGpuError):
    """Raised for a record that no run on a virtual GPU can have written.

    The message names the rank and the entry.
    """
