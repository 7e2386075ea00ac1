"""What two nodes of a GPU cluster are made of, and the links between the parts."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, arrow, box, canvas


def draw() -> Figure:
    figure, axes = canvas(9.6, 4.9)
    for node, left in ((1, 0.1), (2, 5.1)):
        middle = left + 2.2
        box(axes, left, 0.95, 4.4, 3.85, "", fill="#f7f9fa")
        axes.text(left + 0.15, 4.68, f"slurmnode{node}", fontsize=11, color=INK, va="top")
        box(axes, middle - 0.9, 3.5, 1.8, 0.65, "CPUs", fill=BLUE)
        box(axes, left + 3.3, 3.5, 0.95, 0.65, "memory", fill="white", size=9)
        arrow(axes, (middle + 0.9, 3.82), (left + 3.3, 3.82), style="<|-|>")
        for gpu, x in ((0, left + 0.25), (1, left + 2.75)):
            box(axes, x, 1.95, 1.4, 0.65, f"GPU {gpu}", fill=GREEN)
            box(axes, x, 1.2, 1.4, 0.42, "its memory", fill="white", size=9)
            arrow(axes, (x + 0.7, 1.62), (x + 0.7, 1.95), style="<|-|>")
            arrow(axes, (middle + (0.5 if gpu else -0.5), 3.5), (x + 0.7, 2.6), style="<|-|>",
                  color=GREY)
        axes.text(middle, 3.05, "PCIe", fontsize=10, color=GREY, ha="center")
        arrow(axes, (left + 1.65, 2.27), (left + 2.75, 2.27), style="<|-|>", color=INK)
        axes.text(middle, 2.4, "NVLink", fontsize=10, color=INK, ha="center")
        box(axes, middle - 0.9, 0.62, 1.8, 0.45, "network adapter", fill=ORANGE, size=9)
        arrow(axes, (middle, 0.62), (middle, 0.32), style="<|-|>")
    box(axes, 1.4, 0.02, 6.8, 0.32, "network between the nodes (Ethernet or InfiniBand)",
        fill=PURPLE, size=10)
    return figure
