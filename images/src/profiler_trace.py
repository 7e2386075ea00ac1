"""The profiler's timeline of lab 03's job on two nodes: first the kernels, then the all-reduces."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from style import screenshot


def draw() -> Figure:
    return screenshot(Path(__file__).with_suffix(".png"), (
        ("1. first, the GPU computes", (706, 468, 846, 490), (776, 490), 520, 0.8),
        ("2. then it waits for the network", (842, 490, 1030, 512), (936, 512), 930, 0.5),
        ("3. utilization: always full", (364, 401, 1354, 434), (1354, 418), 1330, 0.9)))
