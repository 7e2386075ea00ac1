"""Errors of communication between ranks."""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError


class CollectiveMismatch(VirtualGpuError):
    """Raised if the ranks of a process group call different collectives or arguments."""


class Hang(VirtualGpuError):
    """Raised if all ranks wait and none can make progress."""


class Asymmetric(VirtualGpuError):
    """Raised if a rank that represents others does something that they could not mirror."""


def mismatch_message(first: str, second: str) -> str:
    """Return the error message for two ranks' calls that should be the same."""
    return (
        f"{first}, and {second}; all ranks of a process group must call the same collectives in "
            "the same order")
