"""Two nodes of a GPU cluster: their parts, the links between them, and the links' bandwidths."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, arrow, box, canvas

WIDTH = 5.0  # of a node


def link(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str,
         at: tuple[float, float], ha: str = "center", color: str = INK) -> None:
    """Draw a link between two boxes, with its bandwidth beside it."""
    arrow(axes, start, end, style="<|-|>", color=color)
    axes.text(*at, text, fontsize=8.5, color=color, ha=ha, va="center", linespacing=1.3)


def node(axes: Axes, number: int, left: float) -> None:
    box(axes, left, 1.15, WIDTH, 4.75, "", fill="#f7f9fa")
    axes.text(left + 0.15, 5.78, f"node {number}", fontsize=11, color=INK, va="top")
    box(axes, left + 1.25, 4.95, 1.5, 0.6, "CPU", fill=BLUE)
    box(axes, left + 3.95, 4.95, 0.9, 0.6, "memory", size=9)
    link(axes, (left + 2.75, 5.25), (left + 3.95, 5.25), "205 GB/s", (left + 3.35, 5.42))
    box(axes, left + 0.25, 3.75, 4.5, 0.42, "PCIe switch", fill="#eceff1", size=10)
    link(axes, (left + 2.0, 4.95), (left + 2.0, 4.17), "PCIe 4.0 x16: 32 GB/s",
         (left + 2.12, 4.55), "left", GREY)
    for gpu, x in ((0, left + 0.25), (1, left + 2.2)):
        box(axes, x, 2.5, 1.1, 0.6, f"GPU {gpu}", fill=GREEN)
        box(axes, x, 1.3, 1.1, 0.42, "HBM", size=9)
        link(axes, (x + 0.55, 2.5), (x + 0.55, 1.72), "2,039\nGB/s", (x + 0.65, 2.1), "left")
        link(axes, (x + 0.55, 3.75), (x + 0.55, 3.1), "32 GB/s", (x + 0.65, 3.42), "left", GREY)
    link(axes, (left + 1.35, 2.8), (left + 2.2, 2.8), "NVLink\n300 GB/s", (left + 1.78, 2.45))
    box(axes, left + 3.85, 2.5, 0.9, 0.6, "NIC", fill=ORANGE)
    link(axes, (left + 4.3, 3.75), (left + 4.3, 3.1), "32 GB/s", (left + 4.22, 3.42), "right", GREY)
    link(axes, (left + 4.3, 2.5), (left + 4.3, 0.5), "200 Gbit/s\n= 25 GB/s", (left + 4.22, 0.83),
         "right")


def draw() -> Figure:
    figure, axes = canvas(10.6, 6.0)
    for number, left in ((1, 0.1), (2, 5.5)):
        node(axes, number, left)
    box(axes, 0.6, 0.08, 9.4, 0.42, "network between the nodes: InfiniBand or Ethernet",
        fill=PURPLE, size=10)
    return figure
