"""One round of a ring all-reduce among four ranks on two nodes."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREY, INK, ORANGE, arrow, box, canvas

RANKS = 4
PIECE = 0.36
PLACES = ((1.0, 2.6), (1.0, 0.6), (6.2, 0.6), (6.2, 2.6))  # the ring goes round these


def gradient(axes, x: float, y: float, rank: int) -> None:
    """A rank's gradient in four pieces; the one that it sends in this round is marked."""
    for piece in range(RANKS):
        sends = piece == rank
        box(axes, x + piece * PIECE, y, PIECE, PIECE, f"{piece}", fill=ORANGE if sends else BLUE)
        if sends:
            axes.text(x + (piece + 0.5) * PIECE, y + PIECE + 0.03, "sends", fontsize=8, color=INK,
                      ha="center", va="bottom")


def draw() -> Figure:
    figure, axes = canvas(9.2, 4.0)
    for left, name in ((0.3, "node 0"), (5.5, "node 1")):
        box(axes, left, 0.15, 3.4, 3.7, "", fill="#f7f9fa")
        axes.text(left + 0.15, 3.72, name, fontsize=11, color=INK, va="top")
    for rank, (x, y) in enumerate(PLACES):
        axes.text(x, y + PIECE + 0.28, f"rank {rank}", fontsize=11, color=INK, va="center")
        gradient(axes, x, y, rank)
    middle = RANKS * PIECE / 2
    arrow(axes, (1.0 + middle, 2.55), (1.0 + middle, 1.42), bend=0.0)
    arrow(axes, (1.0 + 2 * middle + 0.1, 0.78), (6.1, 0.78))
    arrow(axes, (6.2 + middle, 1.42), (6.2 + middle, 2.55))
    arrow(axes, (6.1, 2.78), (1.0 + 2 * middle + 0.1, 2.78))
    axes.text(4.6, 1.0, "between nodes", fontsize=10, color=GREY, ha="center")
    axes.text(4.6, 3.0, "between nodes", fontsize=10, color=GREY, ha="center")
    return figure
