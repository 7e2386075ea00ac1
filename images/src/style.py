"""Colors and shapes that the labs' figures share. The colors are told apart by color-blind eyes,
and nothing is said by color alone."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, GREY = "#22313f", "#7f8c8d"
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
