"""Join the items of a list into a phrase."""

from __future__ import annotations

from collections.abc import Iterable


def listed(items: Iterable[str]) -> str:
    """Return the items as "a", "a and b", or "a, b, and c"; nothing for no items."""
    *others, last = [*items] or [""]
    return f"{', '.join(others)}{',' * (len(others) > 1)} and {last}" if others else last
