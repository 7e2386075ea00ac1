"""Hidden states around and inside a layer on four ranks, with and without sequence parallelism."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, arrow, box, canvas

RANKS, SIDE, TOP = 4, 0.86, 0.62
FILLS = (BLUE, ORANGE, GREEN, "#e6dff0")
OUTSIDE, INSIDE = (2.5, 6.1, 9.7), (4.3, 7.9)  # left edges of the tensors


def tensor(axes, x: float, y: float, split: str) -> None:
    """Draw hidden states: positions downward, features to the right.

    Args:
        axes: the figure's.
        x: the left edge.
        y: the lower edge.
        split: "" (every rank has all), "features", or "positions".
    """
    for rank in range(RANKS):
        part = SIDE / RANKS
        if split == "features":
            place, width, height = (x + rank * part, y), part, SIDE
        elif split == "positions":
            place, width, height = (x, y + SIDE - (rank + 1) * part), SIDE, part
        else:  # copies, one behind another
            place, width, height = (x + 0.07 * (1.5 - rank), y + 0.07 * (1.5 - rank)), SIDE, SIDE
        axes.add_patch(Rectangle(place, width, height, facecolor=FILLS[rank], edgecolor=INK,
                                 linewidth=0.9))
    if not split:
        axes.text(x + SIDE / 2 - 0.1, y + SIDE / 2 - 0.1, "4 copies", fontsize=8.5, color=INK,
                  ha="center", va="center")


def row(axes, y: float, name: str, split: str, enter: str, leave: str) -> None:
    axes.text(0.1, y + SIDE / 2, name, fontsize=11, color=INK, va="center")
    for x in OUTSIDE:
        tensor(axes, x, y, split)
    for x in INSIDE:
        tensor(axes, x, y, "features")
        for start, text in ((x - 0.9, enter), (x + SIDE + 0.06, leave)):
            arrow(axes, (start, y + SIDE / 2), (start + 0.82, y + SIDE / 2))
            axes.text(start + 0.41, y + SIDE / 2 + 0.1, text, fontsize=8.5, color=INK, ha="center",
                      va="bottom", linespacing=1.1)


def draw() -> Figure:
    figure, axes = canvas(10.8, 3.9)
    for x, text in zip(OUTSIDE, ("norm", "dropout, add,\nnorm", "dropout,\nadd"), strict=True):
        axes.text(x + SIDE / 2, 3.6, text, fontsize=9.5, color=INK, ha="center", va="center")
    for x, text in zip(INSIDE, ("attention", "MLP"), strict=True):
        box(axes, x - 0.2, 3.4, SIDE + 0.4, 0.4, text, size=9.5)
    row(axes, 2.1, "tensor parallelism", "", "", "all-\nreduce")
    row(axes, 0.75, "and sequence\nparallelism", "positions", "all-\ngather", "reduce-\nscatter")
    for rank in range(RANKS):
        x = 2.5 + rank * 1.2
        axes.add_patch(Rectangle((x, 0.15), 0.22, 0.22, facecolor=FILLS[rank], edgecolor=INK,
                                 linewidth=0.9))
        axes.text(x + 0.32, 0.26, f"rank {rank}", fontsize=9, color=INK, va="center")
    axes.text(7.5, 0.26, "positions run down, features to the right", fontsize=9, color=GREY,
              va="center")
    return figure
