"""A matrix cut into tiles, and the waves in which four multiprocessors compute them."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, canvas

SIDE, WORKERS, ROWS, COLUMNS = 0.62, 4, 2, 5
FILLS = (BLUE, GREEN, ORANGE)


def tile(axes, x: float, y: float, number: int | None) -> None:
    fill = "white" if number is None else FILLS[number // WORKERS]
    axes.add_patch(Rectangle((x, y), SIDE, SIDE, facecolor=fill, edgecolor=INK, linewidth=1,
                             linestyle="--" if number is None else "-"))
    axes.text(x + SIDE / 2, y + SIDE / 2, "idle" if number is None else f"{number}", ha="center",
              va="center", fontsize=8 if number is None else 10,
              color=GREY if number is None else INK)


def draw() -> Figure:
    figure, axes = canvas(9.4, 3.5)
    axes.text(0.2, 3.3, "the result [m, n], in 10 tiles", fontsize=11, color=INK, va="top")
    for number in range(ROWS * COLUMNS):
        row, column = divmod(number, COLUMNS)
        tile(axes, 0.2 + column * SIDE, 1.75 - row * SIDE, number)
    # Tiles compute more than the matrix; the rest is discarded.
    axes.add_patch(Rectangle((0.2, 1.13 + 0.12), COLUMNS * SIDE - 0.12, 2 * SIDE - 0.12, fill=False,
                             edgecolor="#c0392b", linewidth=1.8))
    axes.text(0.2, 0.95, "red: the matrix; work\noutside it is discarded",
              fontsize=9, color=INK, va="top")
    axes.text(4.5, 3.3, "four multiprocessors, wave by wave", fontsize=11, color=INK, va="top")
    for worker in range(WORKERS):
        y = 2.28 - worker * (SIDE + 0.05)
        axes.text(5.05, y + SIDE / 2, f"SM {worker}", fontsize=9, color=GREY, ha="right",
                  va="center")
        for wave in range(3):
            number = wave * WORKERS + worker
            tile(axes, 5.2 + wave * (SIDE + 0.45), y, number if number < 10 else None)
    for wave in range(3):
        axes.text(5.2 + wave * (SIDE + 0.45) + SIDE / 2, 0.1, f"wave {wave + 1}", fontsize=9,
                  color=INK, ha="center")
    axes.text(8.15, 0.62, "half of the\nlast wave\nis idle", fontsize=9, color=INK, va="center",
              ha="left")
    return figure
