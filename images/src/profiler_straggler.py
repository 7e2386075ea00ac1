"""The profiler's view of all ranks of lab 03's job with a slow node."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from style import screenshot


def draw() -> Figure:
    return screenshot(Path(__file__).with_suffix(".png"), (
        ("1. ranks 2 and 3 compute longest", (314, 184, 518, 424), (518, 306), 400, 0.98),
        ("2. so ranks 0 and 1 wait here", (647, 88, 852, 316), (856, 316), 806, 0.62)))
