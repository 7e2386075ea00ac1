"""Eight query heads and two key and value heads on four ranks."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import BLUE, GREY, INK, ORANGE, box, canvas

SIDE, LEFT, RANKS, QUERIES = 0.56, 1.9, 4, 8
GROUPS = (BLUE, ORANGE)


def row(axes: Axes, y: float, text: str) -> None:
    axes.text(LEFT - 0.2, y + SIDE / 2, text, fontsize=10, color=INK, ha="right", va="center")


def place(head: int) -> float:
    """Return where a query head begins: a gap follows each rank's heads."""
    return LEFT + head * (SIDE + 0.08) + head // 2 * 0.55


def draw() -> Figure:
    figure, axes = canvas(10.0, 2.75)
    row(axes, 1.75, "query heads")
    row(axes, 0.9, "key heads")
    row(axes, 0.1, "value heads")
    for rank in range(RANKS):
        start, group = place(2 * rank), rank // 2
        axes.text(start + SIDE + 0.04, 2.58, f"rank {rank}", fontsize=10, color=INK, ha="center",
                  va="center")
        for head in (2 * rank, 2 * rank + 1):
            box(axes, place(head), 1.75, SIDE, SIDE, f"q{head}", fill=GROUPS[group])
            axes.plot([place(head) + SIDE / 2, start + SIDE + 0.04], [1.75, 0.9 + SIDE],
                      color=GREY, linewidth=1.0)
        for y, name in ((0.9, "k"), (0.1, "v")):
            box(axes, start + SIDE / 2 + 0.04, y, SIDE, SIDE, f"{name}{group}",
                fill=GROUPS[group])
    return figure
