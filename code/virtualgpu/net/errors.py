"""Errors of communication between ranks."""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError


class Mismatch(VirtualGpuError):
    """Two ranks of a process group do not call the same collective with the same arguments."""


class Hang(VirtualGpuError):
    """All ranks are waiting, and none can make progress."""


class Asymmetric(VirtualGpuError):
    """A rank that represents others does something that these could not do in the same way."""
