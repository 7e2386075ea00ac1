"""Errors of virtual GPUs, in the user's terms."""

from __future__ import annotations


class VirtualGpuError(ValueError):
    """A virtual GPU does not have what the program asks for; the message names what it has."""


class UnknownCard(VirtualGpuError):
    """There is no such GPU model; the message names the nearest ones."""


class NoValue(VirtualGpuError):
    """The program read a value where there is none, or needs arithmetic that the GPU lacks."""


class UnknownCost(VirtualGpuError):
    """Too much of the time was spent in operations without a cost rule."""
