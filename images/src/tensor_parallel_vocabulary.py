"""An embedding of ten tokens on three ranks, and the logits of one position."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, canvas

TOKENS, RANKS, SIDE = 10, 3, 0.27
FILLS = (BLUE, ORANGE, GREEN)
LABEL, TOP = 7, 3.0


def owner(token: int) -> int:
    """Return the rank that has a token's row."""
    return next(rank for rank in range(RANKS) if token < TOKENS * (rank + 1) // RANKS)


def draw() -> Figure:
    figure, axes = canvas(9.2, 3.5)
    axes.text(1.9, TOP + 0.3, "embedding [10, h]", fontsize=10, color=INK, ha="center",
              va="center")
    axes.text(6.3, TOP + 0.3, "logits of one position [10]", fontsize=10, color=INK, ha="center",
              va="center")
    for token in range(TOKENS):
        rank, y = owner(token), TOP - (token + 1) * SIDE
        axes.add_patch(Rectangle((0.9, y), 2.0, SIDE, facecolor=FILLS[rank], edgecolor=INK,
                                 linewidth=0.8))
        axes.text(0.8, y + SIDE / 2, f"token {token}", fontsize=9, color=INK, ha="right",
                  va="center")
        is_label = token == LABEL
        axes.add_patch(Rectangle((5.9, y), 0.8, SIDE, facecolor=FILLS[rank], edgecolor=INK,
                                 linewidth=2.2 if is_label else 0.8, zorder=2 if is_label else 1))
        axes.text(6.3, y + SIDE / 2, f"$z_{token}$", fontsize=10, color=INK, ha="center",
                  va="center", zorder=3)
        if is_label:
            axes.text(6.85, y + SIDE / 2, "label", fontsize=9, color=GREY, va="center")
    for rank in range(RANKS):
        first, last = TOKENS * rank // RANKS, TOKENS * (rank + 1) // RANKS
        y = TOP - (first + last) / 2 * SIDE
        axes.annotate("", (5.8, y), (3.75, y), arrowprops={"arrowstyle": "-|>", "color": INK})
        axes.text(3.0, y, f"rank {rank}", fontsize=10, color=INK, va="center")
        axes.text(4.75, y + 0.13, "$x \\cdot$ its rows", fontsize=9, color=INK, ha="center",
                  va="center")
    return figure
