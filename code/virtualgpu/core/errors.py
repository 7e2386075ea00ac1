"""Errors that virtual GPUs raise."""

from __future__ import annotations


class VirtualGpuError(ValueError):
    """Raised if a virtual GPU lacks what the program asks for; the message names what it has."""


class UnknownCard(VirtualGpuError):
    """Raised for an unknown GPU model; the message names the nearest ones."""


class NoValue(VirtualGpuError):
    """Raised if a program reads a value that was not computed, or uses unsupported arithmetic."""


class UnknownCost(VirtualGpuError):
    """Raised if operations without a cost rule take too much of the time."""
