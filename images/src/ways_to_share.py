"""One model on two GPUs: data-, tensor- and pipeline-parallel, and what crosses in each."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, arrow, box, canvas

LAYERS = 4
HEIGHT, GAP = 0.46, 0.16
BOTTOM = 1.15


def level(layer: int) -> float:
    return BOTTOM + layer * (HEIGHT + GAP)


def card(axes: Axes, x: float, name: str, batch: str) -> None:
    box(axes, x, 0.85, 1.3, 3.2, name, size=9.5, top=True)
    axes.text(x + 0.65, 0.62, batch, ha="center", va="center", fontsize=8.5, color=INK)


def layers(axes: Axes, x: float, which: range, width: float, fill: str, text: str) -> None:
    for layer in which:
        box(axes, x, level(layer), width, HEIGHT, text.format(layer), fill=fill, size=8.5)


def title(axes: Axes, x: float, name: str, crosses: str) -> None:
    axes.text(x, 4.5, name, ha="center", fontsize=11.5, color=INK, weight="bold")
    axes.text(x, 0.22, crosses, ha="center", va="center", fontsize=9, color=INK, style="italic")


def draw() -> Figure:
    figure, axes = canvas(10.4, 4.8)
    for left, first, second in ((0.1, "samples ab", "samples cd"),
                                (3.6, "samples abcd", "samples abcd"),
                                (7.1, "samples abcd", "activations")):
        card(axes, left, "GPU 0", first)
        card(axes, left + 1.8, "GPU 1", second)
    for x in (0.1, 1.9):
        layers(axes, x + 0.2, range(LAYERS), 0.9, BLUE, "layer {}")
    arrow(axes, (1.4, 2.4), (1.9, 2.4), style="<|-|>")
    for x in (3.7, 5.5):
        layers(axes, x, range(LAYERS), 1.1, ORANGE, "half of layer {}")
    for layer in range(LAYERS):
        y = level(layer) + HEIGHT / 2
        arrow(axes, (4.8, y), (5.5, y), style="<|-|>")
    layers(axes, 7.3, range(2), 0.9, GREEN, "layer {}")
    layers(axes, 9.1, range(2, LAYERS), 0.9, GREEN, "layer {}")
    arrow(axes, (8.2, level(1) + 0.12), (9.1, level(2) + 0.05))
    arrow(axes, (9.1, level(2) + 0.38), (8.2, level(1) + 0.4), color=GREY, dashed=True)
    title(axes, 1.65, "data-parallel", "gradients, once per step")
    title(axes, 5.15, "tensor-parallel", "activations, in every layer, both ways")
    title(axes, 8.65, "pipeline-parallel", "activations at the boundary; their gradients back")
    return figure
