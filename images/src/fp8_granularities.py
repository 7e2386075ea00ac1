"""What shares a scale: a tensor, a row, a block of 128 x 128, 1 x 128 elements, or 1 x 32."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, INK, ORANGE, PURPLE, RED, canvas

SIDE = 1.6  # inches, of a matrix of 8 x 8 squares; a square is 32 elements wide
SQUARES = 8
OUTLIER = 2, 5  # row and column
# Title, squares per block (down, across), and where it is used.
KINDS = (("one per tensor", (8, 8), "DelayedScaling,\nFloat8CurrentScaling"),
         ("one per row", (1, 8), "rowwise\n(torchao)"),
         ("128 x 128 block", (4, 4), "Float8BlockScaling:\nweights"),
         ("1 x 128 block", (1, 4), "Float8BlockScaling:\nactivations, gradients"),
         ("1 x 32 block", (1, 1), "MXFP8BlockScaling"))
FILLS = (BLUE, ORANGE, GREEN, PURPLE)


def matrix(axes: Axes, x: float, y: float, rows: int, columns: int) -> None:
    """Draw a matrix whose blocks have colors of their own; mark what shares the outlier's scale."""
    size = SIDE / SQUARES
    for down in range(SQUARES // rows):
        for across in range(SQUARES // columns):
            axes.add_patch(Rectangle(
                (x + across * columns * size, y + SIDE - (down + 1) * rows * size),
                columns * size, rows * size, facecolor=FILLS[(down + 2 * across) % len(FILLS)],
                edgecolor=INK, linewidth=0.8))
    row, column = OUTLIER
    axes.add_patch(Rectangle(
        (x + column // columns * columns * size, y + SIDE - (row // rows + 1) * rows * size),
        columns * size, rows * size, fill=False, edgecolor=RED, linewidth=2.2))
    axes.text(x + (column + 0.5) * size, y + SIDE - (row + 0.5) * size, "x", ha="center",
              va="center", fontsize=11, color=RED, weight="bold")


def draw() -> Figure:
    figure, axes = canvas(10.2, 3.1)
    for number, (title, (rows, columns), used) in enumerate(KINDS):
        x = 0.2 + number * (SIDE + 0.42)
        axes.text(x + SIDE / 2, 3.0, title, ha="center", va="top", fontsize=11, color=INK)
        matrix(axes, x, 1.05, rows, columns)
        axes.text(x + SIDE / 2, 0.93, used, ha="center", va="top", fontsize=8.5, color=INK)
    axes.text(0.2, 0.22, "x: an outlier. Red: the elements that share its scale. "
              "A square is 32 elements wide.", fontsize=9.5, color=INK, va="center")
    return figure
