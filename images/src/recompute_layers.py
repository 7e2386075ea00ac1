"""Six layers after the forward pass: what is kept with no recomputation, uniform and block."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import GREEN, GREY, INK, ORANGE, arrow, box, canvas

LAYERS = 6
WIDTH, GAP = 0.92, 0.22
ROWS = (("nothing is recomputed", 3.35, 0, ()),
        ("uniform, groups of 2", 2.05, LAYERS, (0, 2, 4)),
        ("block, the first 2 layers", 0.75, 2, (0, 1)))


def draw() -> Figure:
    figure, axes = canvas(9.6, 4.3)
    for name, y, again, inputs in ROWS:
        axes.text(0.1, y + 0.3, name, fontsize=10.5, color=INK, va="center")
        for layer in range(LAYERS):
            x = 2.6 + layer * (WIDTH + GAP)
            kept = layer >= again
            box(axes, x, y, WIDTH, 0.6, f"layer {layer}", fill=GREEN if kept else "white", size=9)
            if layer in inputs or kept:
                box(axes, x - GAP + 0.03, y + 0.12, GAP - 0.06, 0.36, "", fill=ORANGE)
            if layer in inputs and name.startswith("uniform"):
                arrow(axes, (x + 0.1, y - 0.12), (x + 2 * WIDTH + GAP - 0.1, y - 0.12), color=GREY)
    for x, fill, text in ((2.6, ORANGE, "an input that is kept"),
                          (5.0, GREEN, "all activations are kept"),
                          (7.4, "white", "computed again")):
        box(axes, x, 0.08, 0.25, 0.25, "", fill=fill)
        axes.text(x + 0.35, 0.2, text, fontsize=9, color=INK, va="center")
    return figure
