"""What can go wrong between ranks."""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError


class Mismatch(VirtualGpuError):
    """Two ranks of a process group do not call the same collective with the same arguments."""


class Hang(VirtualGpuError):
    """Every rank waits, and none of them can go on."""


class Asymmetric(VirtualGpuError):
    """A rank that stands for others does something that the others cannot do alike."""
