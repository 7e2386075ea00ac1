"""One step of data parallelism three times: per-gradient all-reduces, one bucket, and overlap."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, box, canvas

FORWARD, BACKWARD, BUCKETS = 1.6, 3.2, 4
LEFT, HEIGHT = 2.1, 0.42


def row(axes, y: float, name: str) -> None:
    """Name a pair of lanes: the GPU's computation above its communication."""
    axes.text(0.1, y + HEIGHT / 2 + 0.05, name, fontsize=11, color=INK, va="center")
    axes.text(LEFT - 0.1, y + HEIGHT * 1.1 + 0.1, "compute", fontsize=8, color=GREY, ha="right",
              va="center")
    axes.text(LEFT - 0.1, y + HEIGHT * 0.1, "network", fontsize=8, color=GREY, ha="right",
              va="center")
    box(axes, LEFT, y + HEIGHT * 0.7, FORWARD, HEIGHT, "forward", fill=BLUE, size=10)
    box(axes, LEFT + FORWARD, y + HEIGHT * 0.7, BACKWARD, HEIGHT, "backward", fill=GREEN, size=10)


def draw() -> Figure:
    figure, axes = canvas(11.0, 3.6)
    end = LEFT + FORWARD + BACKWARD
    row(axes, 2.6, "one all-reduce\nfor each gradient")
    for number in range(12):
        box(axes, end + number * 0.3, 2.6 - HEIGHT * 0.4, 0.27, HEIGHT, "", fill=ORANGE)
    row(axes, 1.5, "one bucket")
    box(axes, end, 1.5 - HEIGHT * 0.4, 2.4, HEIGHT, "all-reduce", fill=ORANGE, size=10)
    row(axes, 0.4, "buckets\nand overlap")
    for number in range(BUCKETS):
        start = LEFT + FORWARD + (number + 1) * BACKWARD / BUCKETS
        box(axes, start, 0.4 - HEIGHT * 0.4, 0.65, HEIGHT, f"{number}", fill=ORANGE, size=10)
    for y, start, length in ((2.6, end, 3.57), (1.5, end, 2.4), (0.4, end, 0.65)):
        axes.annotate("", (start, y + 0.5), (start + length, y + 0.5),
                      arrowprops={"arrowstyle": "<->", "color": INK})
        axes.text(start + length / 2, y + 0.56, "exposed", fontsize=9, color=INK, ha="center")
    return figure
