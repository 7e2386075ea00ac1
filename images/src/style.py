"""Colors and shapes that the labs' figures share. The colors are told apart by color-blind eyes,
and nothing is said by color alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from PIL import Image

INK, GREY = "#22313f", "#7f8c8d"
RED = "#b00020"
BLUE, ORANGE, GREEN, PURPLE = "#cfe2f3", "#fce5cd", "#d9ead3", "#e6dff0"


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of `width` x `height` inches; its coordinates are inches as well."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str = "", *,
        fill: str = "white", size: float = 11, top: bool = False) -> None:
    """A rounded box, its lower left corner at (x, y); `top` puts the text under the upper edge."""
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08",
                                  facecolor=fill, edgecolor=INK, linewidth=1.2))
    axes.text(x + width / 2, y + (height - 0.12 if top else height / 2), text, ha="center",
              va="top" if top else "center", fontsize=size, color=INK, linespacing=1.5)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, bend: float = 0.0,
          color: str = INK, style: str = "-|>", dashed: bool = False) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=14, color=color,
                                   connectionstyle=f"arc3,rad={bend}", linewidth=1.4,
                                   linestyle="--" if dashed else "-", shrinkA=2, shrinkB=2))


Arrow = tuple[str, tuple[int, int, int, int], tuple[int, int], int, float]


def screenshot(path: Path, arrows: tuple[Arrow, ...]) -> Figure:
    """A screenshot, with frames around parts of it and texts below it that point there.

    Args:
        path: the screenshot, which tools/pictures.py takes.
        arrows: a text, a frame (left, top, right, bottom, in pixels), where the arrow ends, the
            text's center, and the share of its width at which the arrow starts.
    """
    screen = np.asarray(Image.open(path).convert("RGB"))
    height, width = screen.shape[:2]
    figure = Figure(figsize=(9.2, 9.2 * height / width + 0.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(screen, interpolation="none")
    axes.set_xlim(0, width)
    axes.set_ylim(height + 70, 0)
    axes.axis("off")
    for text, (left, top, right, bottom), tip, place, start in arrows:
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False,
                                 edgecolor=RED, linewidth=1.5))
        axes.annotate(text, tip, (place, height + 40), fontsize=11,
                      color=INK, ha="center", va="center", arrowprops={
                          "arrowstyle": "-|>", "color": RED, "linewidth": 2, "relpos": (start, 1)})
    return figure
