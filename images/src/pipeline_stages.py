"""A model cut between its layers into three stages, and what crosses the cuts."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, INK, ORANGE, arrow, box, canvas

STAGES, LAYERS = 3, 2
WIDTH, GAP = 2.5, 1.1


def draw() -> Figure:
    figure, axes = canvas(10.2, 2.9)
    for stage in range(STAGES):
        x = 0.1 + stage * (WIDTH + GAP)
        box(axes, x, 0.5, WIDTH, 2.3, f"stage {stage} on GPU {stage}", fill=BLUE, top=True)
        for layer in range(LAYERS):
            box(axes, x + 0.2 + layer * 1.1, 1.1, 1.0, 0.7, f"layer {stage * LAYERS + layer}",
                fill=GREEN, size=10)
        if stage < STAGES - 1:
            cut = x + WIDTH
            arrow(axes, (cut, 1.75), (cut + GAP, 1.75))
            arrow(axes, (cut + GAP, 1.15), (cut, 1.15), dashed=True)
    box(axes, 0.1 + 0.65, 0.62, 1.2, 0.35, "embedding", fill=ORANGE, size=10)
    box(axes, 0.1 + 2 * (WIDTH + GAP) + 0.75, 0.62, 1.0, 0.35, "loss", fill=ORANGE, size=10)
    arrow(axes, (0.2, 0.2), (0.8, 0.2))
    axes.text(0.95, 0.2, "activations (forward)", fontsize=10, color=INK, va="center")
    arrow(axes, (5.0, 0.2), (4.4, 0.2), dashed=True)
    axes.text(5.15, 0.2, "gradients of activations (backward)", fontsize=10, color=INK, va="center")
    return figure
