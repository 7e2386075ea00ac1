"""The backward pass of column-parallel layers, with an exposed and with a hidden all-reduce."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, box, canvas

LEFT, HEIGHT, INPUT, WEIGHTS, REDUCE = 1.9, 0.42, 2.4, 2.4, 1.7


def lanes(axes, y: float, name: str) -> None:
    """Name a pair of lanes: the GPU's computation above its communication."""
    axes.text(0.1, y + HEIGHT * 0.65, name, fontsize=11, color=INK, va="center")
    axes.text(LEFT - 0.1, y + HEIGHT * 1.2, "GPU", fontsize=8, color=GREY, ha="right", va="center")
    axes.text(LEFT - 0.1, y + HEIGHT * 0.1, "network", fontsize=8, color=GREY, ha="right",
              va="center")
    box(axes, LEFT, y + HEIGHT * 0.7, INPUT, HEIGHT, "gradient of the input", fill=BLUE, size=10)
    box(axes, LEFT + INPUT, y + HEIGHT * 0.7, WEIGHTS, HEIGHT, "weight gradients", fill=GREEN,
        size=10)


def draw() -> Figure:
    figure, axes = canvas(10.4, 2.5)
    lanes(axes, 1.5, "plain")
    end = LEFT + INPUT + WEIGHTS
    box(axes, end, 1.5 - HEIGHT * 0.4, REDUCE, HEIGHT, "all-reduce", fill=ORANGE, size=10)
    axes.annotate("", (end, 2.0), (end + REDUCE, 2.0),
                  arrowprops={"arrowstyle": "<->", "color": INK})
    axes.text(end + REDUCE / 2, 2.08, "exposed", fontsize=9, color=INK, ha="center")
    box(axes, end + REDUCE, 1.5 + HEIGHT * 0.7, 1.6, HEIGHT, "layer before", fill="white", size=10)
    lanes(axes, 0.4, "overlapping")
    box(axes, LEFT + INPUT, 0.4 - HEIGHT * 0.4, REDUCE, HEIGHT, "all-reduce", fill=ORANGE, size=10)
    box(axes, end, 0.4 + HEIGHT * 0.7, 1.6, HEIGHT, "layer before", fill="white", size=10)
    return figure
