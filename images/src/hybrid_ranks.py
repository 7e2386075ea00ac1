"""Tensor parallelism inside the nodes, a pipeline between them: who sends what to whom."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, arrow, box, canvas


def draw() -> Figure:
    figure, axes = canvas(9.2, 3.7)
    for node, left, layers in ((0, 0.2, "embedding, layers 0 to 5"),
                               (1, 5.5, "layers 6 to 11, logits, loss")):
        box(axes, left, 0.1, 3.5, 3.4, f"slurmnode{node + 1}\nstage {node}: {layers}",
            fill="#f7f9fa", top=True, size=11)
        for half, y in ((0, 1.65), (1, 0.3)):
            box(axes, left + 0.3, y, 1.9, 0.85, f"rank {2 * node + half}\nhalf of each "
                "matmul", fill=(GREEN, BLUE)[half], size=9)
        arrow(axes, (left + 1.25, 1.65), (left + 1.25, 1.15), style="<|-|>")
        axes.text(left + 1.4, 1.4, "tensor-parallel:\nNVLink, all the time", fontsize=9,
                  va="center", color=INK)
    for y in (2.07, 0.72):
        arrow(axes, (2.4, y + 0.08), (5.8, y + 0.08))
        arrow(axes, (5.8, y - 0.12), (2.4, y - 0.12), color=GREY, dashed=True)
    box(axes, 3.85, 1.15, 1.5, 0.55, "pipeline:\nthe network", fill=ORANGE, size=9)
    axes.text(4.6, 2.42, "activations", fontsize=9, ha="center", color=INK)
    axes.text(4.6, 0.36, "their gradients (dashed)", fontsize=9, ha="center", color=INK)
    return figure
