"""The matrices of an MLP on two ranks, each of which has half of the inner features."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, canvas

TOKENS, HIDDEN, INNER = 0.7, 0.9, 1.6
RANKS = (BLUE, ORANGE)


def matrix(axes: Axes, x: float, y: float, width: float, height: float, fill: str,
           text: str = "") -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=INK, linewidth=1.0))
    axes.text(x + width / 2, y + height / 2, text, fontsize=10, color=INK, ha="center",
              va="center")


def columns(axes: Axes, x: float, y: float, height: float, name: str) -> None:
    """A matrix whose columns two ranks share."""
    for rank, fill in enumerate(RANKS):
        matrix(axes, x + rank * INNER / 2, y, INNER / 2, height, fill, f"{name}$_{rank}$")


def sign(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, fontsize=13, color=INK, ha="center", va="center")


def label(axes: Axes, x: float, y: float, text: str, color: str = GREY) -> None:
    axes.text(x, y, text, fontsize=9, color=color, ha="center", va="center")


def draw() -> Figure:
    figure, axes = canvas(10.4, 3.5)
    middle = 1.75
    matrix(axes, 0.2, middle - TOKENS / 2, HIDDEN, TOKENS, GREEN, "x")
    label(axes, 0.2 + HIDDEN / 2, middle + 0.55, "[tokens, h]")
    sign(axes, 1.35, middle, "·")
    columns(axes, 1.6, middle + 0.2, HIDDEN, "gate")
    columns(axes, 1.6, middle - 0.2 - HIDDEN, HIDDEN, "up")
    label(axes, 1.6 + INNER / 2, middle + 0.35 + HIDDEN, "gate$^T$ and up$^T$, [h, inner]")
    axes.annotate("", (4.35, middle), (3.35, middle),
                  arrowprops={"arrowstyle": "-|>", "color": INK})
    label(axes, 3.85, middle + 0.2, "silu(gate) $\\odot$ up", INK)
    columns(axes, 4.5, middle - TOKENS / 2, TOKENS, "a")
    label(axes, 4.5 + INNER / 2, middle + 0.55, "[tokens, inner]")
    sign(axes, 6.3, middle, "·")
    for rank, fill in enumerate(RANKS):
        matrix(axes, 6.5, middle - rank * INNER / 2, HIDDEN, INNER / 2, fill, f"down$_{rank}$")
    label(axes, 6.5 + HIDDEN / 2, middle + INNER / 2 + 0.18, "down$^T$, [inner, h]")
    sign(axes, 7.65, middle, "=")
    matrix(axes, 7.9, middle - TOKENS / 2, HIDDEN, TOKENS, RANKS[0], "a$_0$ down$_0$")
    sign(axes, 8.98, middle, "+")
    matrix(axes, 9.15, middle - TOKENS / 2, HIDDEN, TOKENS, RANKS[1], "a$_1$ down$_1$")
    label(axes, 8.98, middle + 0.55, "y [tokens, h]")
    for place, (text, fill) in enumerate((("both ranks", GREEN), ("rank 0", RANKS[0]),
                                          ("rank 1", RANKS[1]))):
        matrix(axes, 7.0 + 1.2 * place, 0.2, 0.22, 0.22, fill)
        axes.text(7.3 + 1.2 * place, 0.31, text, fontsize=9, color=INK, va="center")
    return figure
