"""Six layers in the middle of the backward pass: what memory holds with no recomputation, uniform,
and block."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import GREEN, GREY, INK, ORANGE, PURPLE, box, canvas

LAYERS = 6
WIDTH, GAP, LEFT = 0.86, 0.3, 2.7
# The backward pass has reached this layer.
REACHED = 3
# Per row: its height, the groups that are recomputed together, as (first layer, layers).
ROWS = (("nothing is recomputed", 3.35, ()),
        ("uniform, groups of 2", 2.05, ((0, 2), (2, 2), (4, 2))),
        ("block, the first 2 layers", 0.75, ((0, 1), (1, 1))))


def place(layer: int) -> float:
    return LEFT + layer * (WIDTH + GAP)


def draw() -> Figure:
    figure, axes = canvas(9.6, 4.45)
    for name, y, groups in ROWS:
        axes.text(0.1, y + 0.3, name, fontsize=10.5, color=INK, va="center")
        group_of = {first + i: (first, size) for first, size in groups for i in range(size)}
        for layer in range(LAYERS):
            x, group = place(layer), group_of.get(layer)
            again = group and group[0] <= REACHED < sum(group)
            done = layer > REACHED and not again
            fill = PURPLE if again else "white" if group or done else GREEN
            box(axes, x, y, WIDTH, 0.6, f"layer {layer}", fill=fill, size=9)
            if not done and (group is None or layer == group[0]):
                box(axes, x - 0.21, y + 0.12, 0.15, 0.36, "", fill=ORANGE)
        for first, size in groups:
            axes.add_patch(Rectangle((place(first) - 0.25, y - 0.1), size * (WIDTH + GAP) - 0.05,
                                     0.8, fill=False, edgecolor=GREY, linestyle="--"))
    x = place(REACHED) + WIDTH + 0.04
    axes.plot([x, x], [0.6, 4.3], color=INK, linewidth=1)
    axes.text(x + 0.08, 4.22, "the backward pass is done with these layers", fontsize=9,
              color=INK, va="center")
    for x, fill, text in ((0.1, ORANGE, "an input that is kept"),
                          (2.5, GREEN, "activations that are kept"),
                          (5.2, PURPLE, "computed again, until used"),
                          (7.9, "white", "not in memory")):
        box(axes, x, 0.08, 0.25, 0.25, "", fill=fill)
        axes.text(x + 0.35, 0.2, text, fontsize=9, color=INK, va="center")
    return figure
