"""When ZeRO stage 3 gathers and frees the parameters of four blocks."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, canvas

BLOCKS, WIDTH, SENT, LEFT = 4, 0.45, 0.32, 1.5


def bar(axes, x: float, y: float, width: float, text: str, fill: str) -> None:
    axes.add_patch(Rectangle((x, y), width, 0.34, facecolor=fill, edgecolor=INK, linewidth=0.9))
    axes.text(x + width / 2, y + 0.17, text, fontsize=8.5, color=INK, ha="center", va="center")


def draw() -> Figure:
    figure, axes = canvas(10.6, 2.5)
    for y, text in ((1.7, "GPU"), (1.2, "network")):
        axes.text(LEFT - 0.15, y + 0.17, text, fontsize=10, color=INK, ha="right", va="center")
    axes.text(LEFT - 0.15, 0.62, "parameters in\nmemory", fontsize=10, color=INK, ha="right",
              va="center")
    at = LEFT
    forward = [(number, WIDTH, False) for number in range(BLOCKS)]
    backward = [(number, 2 * WIDTH, True) for number in reversed(range(BLOCKS))]
    for number, width, is_backward in forward + backward:
        gathered = not (is_backward and number == BLOCKS - 1)
        if is_backward and gathered:  # the reduce-scatter before it was started earlier
            bar(axes, at, 1.2, SENT, f"R{number + 1}", "white")
            at += SENT
        start = at
        if gathered:
            bar(axes, at, 1.2, SENT, f"G{number}", GREEN)
            at += SENT
        bar(axes, at, 1.7, width, f"{'B' if is_backward else 'F'}{number}",
            ORANGE if is_backward else BLUE)
        end = at + width
        keeps = not is_backward and number == BLOCKS - 1
        y = 0.25 + number * 0.2
        if gathered:
            length = end - start + (2 * WIDTH if keeps else 0)
            axes.add_patch(Rectangle((start, y), length, 0.13, facecolor=GREEN, edgecolor=INK,
                                     linewidth=0.7))
            axes.text(start - 0.06, y + 0.065, str(number), fontsize=7, color=GREY, ha="right",
                      va="center")
        at = end
    bar(axes, at, 1.2, SENT, "R0", "white")
    axes.text(LEFT, 2.3, "F, B: forward and backward pass of a block     G: all-gather of its "
              "parameters     R: reduce-scatter of its gradients", fontsize=9, color=INK,
              va="center")
    return figure
