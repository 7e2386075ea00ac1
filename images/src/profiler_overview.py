"""The profiler's overview of lab 03's job on two nodes: busy, yet waiting.

profiler_overview.png is a screenshot of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from style import INK

SCREEN = Path(__file__).with_suffix(".png")


def draw() -> Figure:
    screen = np.asarray(Image.open(SCREEN).convert("RGB"))
    height, width = screen.shape[:2]
    figure = Figure(figsize=(9.2, 9.2 * height / width + 0.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(screen, interpolation="none")
    axes.set_xlim(0, width)
    axes.set_ylim(height + 70, 0)
    axes.axis("off")
    for text, at, place in (("1. busy nearly all the time", BUSY, (560, height + 40)),
                            ("2. but most of it is communication", WAITING, (1130, height + 40))):
        axes.annotate(text, at, place, fontsize=11, color=INK, ha="center", va="center",
                      arrowprops={"arrowstyle": "-|>", "color": "#b00020", "linewidth": 2})
    return figure


BUSY, WAITING = (690, 236), (1152, 270)  # pixels of the screenshot: the two rows
