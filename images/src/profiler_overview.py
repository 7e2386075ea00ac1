"""The profiler's overview of lab 03's job on two nodes: busy, yet waiting."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from style import screenshot


def draw() -> Figure:
    return screenshot(Path(__file__).with_suffix(".png"), (  # no arrow covers a number
        ("1. busy nearly all the time", (554, 212, 812, 238), (812, 225), 800, 0.6),
        ("2. but most of it is communication", (847, 252, 1150, 273), (1150, 262), 1215, 0.4)))
