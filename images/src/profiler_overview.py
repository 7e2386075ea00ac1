"""The profiler's overview of lab 03's job on two nodes: busy, yet waiting.

profiler_overview.png is a screenshot of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
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
    for text, (left, top, right, bottom), place, start in ARROWS:
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False,
                                 edgecolor=RED, linewidth=1.5))
        axes.annotate(text, (right, (top + bottom) / 2), (place, height + 40), fontsize=11,
                      color=INK, ha="center", va="center", arrowprops={
                          "arrowstyle": "-|>", "color": RED, "linewidth": 2, "relpos": (start, 1)})
    return figure


RED = "#b00020"
# A text, its row in the screenshot (left, top, right, bottom, in pixels), the text's center, and
# the share of its width at which the arrow starts: right of the row, so that it covers no number.
ARROWS = (("1. busy nearly all the time", (554, 212, 812, 238), 800, 0.6),
          ("2. but most of it is communication", (847, 252, 1150, 273), 1215, 0.4))
