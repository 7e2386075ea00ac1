"""What can be wrong with a virtual GPU, in the user's terms."""

from __future__ import annotations


class VirtualGpuError(ValueError):
    """Something that was asked of a virtual GPU does not exist there; the text says what does."""


class UnknownCard(VirtualGpuError):
    """No such card; the text names the nearest ones."""


class NoValue(VirtualGpuError):
    """A value was read where there is none, or arithmetic asked for that the card lacks."""


class UnknownCost(VirtualGpuError):
    """Too much time went into operations whose cost nobody wrote down."""
