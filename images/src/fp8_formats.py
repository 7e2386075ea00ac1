"""The bits of four number formats, and the numbers that the two FP8 formats and E2M1 can hold."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, canvas

FORMATS = (("BF16", 8, 7), ("E5M2", 5, 2), ("E4M3", 4, 3), ("E2M1", 2, 1))
# Mantissa bits, exponent of the smallest normal number, and the largest number.
NUMBERS = {"E5M2": (2, -14, 57344.0), "E4M3": (3, -6, 448.0), "E2M1": (1, 0, 6.0)}
CELL, LEFT, RIGHT, FIRST, LAST = 0.27, 1.0, 8.9, -17, 16  # powers of two on the axis


def bits(axes: Axes, y: float, name: str, exponent: int, mantissa: int) -> None:
    """Draw a format's sign, exponent, and mantissa bits as cells."""
    axes.text(LEFT - 0.12, y + CELL / 2, name, ha="right", va="center", fontsize=10, color=INK)
    fields = ((1, GREY, "s"), (exponent, ORANGE, "e"), (mantissa, GREEN, "m"))
    x = LEFT
    for count, fill, letter in fields:
        for _ in range(count):
            axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=fill, edgecolor=INK,
                                     linewidth=0.8, alpha=0.5 if letter == "s" else 1))
            axes.text(x + CELL / 2, y + CELL / 2, letter, ha="center", va="center", fontsize=8,
                      color=INK)
            x += CELL


def position(exponent: float) -> float:
    return LEFT + (RIGHT - LEFT) * (exponent - FIRST) / (LAST - FIRST)


def range_of(axes: Axes, y: float, name: str) -> None:
    """Draw what a format covers: subnormal and normal numbers, over powers of two."""
    mantissa, smallest, largest = NUMBERS[name]
    least = smallest - mantissa
    top = smallest
    while 2.0 ** (top + 1) <= largest:
        top += 1
    axes.text(LEFT - 0.12, y + 0.13, name, ha="right", va="center", fontsize=10, color=INK)
    for start, end, fill in ((least, smallest, BLUE), (smallest, top + 1, GREEN)):
        axes.add_patch(Rectangle((position(start), y), position(end) - position(start), 0.26,
                                 facecolor=fill, edgecolor=INK, linewidth=1))
    if top - smallest > 6:  # there is room for text
        axes.text(position((smallest + top + 1) / 2), y + 0.13,
                  f"{2**mantissa} numbers per power of two", ha="center", va="center", fontsize=8,
                  color=INK)
    axes.text(position(top + 1) + 0.07, y + 0.13, f"{largest:,.0f}", ha="left", va="center",
              fontsize=9, color=INK)


def draw() -> Figure:
    figure, axes = canvas(9.9, 4.5)
    axes.text(0.2, 4.45, "bits: s sign, e exponent, m mantissa", fontsize=11, color=INK, va="top")
    for row, (name, exponent, mantissa) in enumerate(FORMATS):
        bits(axes, 3.8 - row * 0.36, name, exponent, mantissa)
    axes.text(0.2, 2.45, "magnitudes, by powers of two: subnormal (blue), normal (green), "
              "and the largest number", fontsize=11, color=INK, va="top")
    for row, name in enumerate(NUMBERS):
        range_of(axes, 1.75 - row * 0.42, name)
    axes.plot([LEFT, RIGHT], [0.62, 0.62], color=INK, linewidth=1)
    for exponent in range(FIRST + 1, LAST + 1, 4):
        x = position(exponent)
        axes.plot([x, x], [0.56, 0.62], color=INK, linewidth=1)
        axes.text(x, 0.5, f"$2^{{{exponent}}}$", ha="center", va="top", fontsize=9, color=INK)
    return figure
