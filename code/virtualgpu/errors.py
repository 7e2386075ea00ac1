"""What can be wrong with a virtual GPU, in the user's terms."""

from __future__ import annotations


class VirtualGpuError(ValueError):
    """Something that was asked of a virtual GPU does not exist there; the text says what does."""


class UnknownCard(VirtualGpuError):
    """No such card; the text names the nearest ones."""
