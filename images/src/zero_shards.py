"""Three tensors in a flat buffer, which four ranks divide into equal shards."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, canvas

SIDE, LEFT, RANKS, SHARD = 0.42, 1.5, 4, 5
TENSORS = (("A", "[2, 4]", 8, BLUE), ("B", "[1]", 1, GREEN), ("C", "[3, 3]", 9, ORANGE))


def cells(axes, x: float, y: float, count: int, fill: str, dashed: bool = False) -> None:
    for number in range(count):
        axes.add_patch(Rectangle((x + number * SIDE, y), SIDE, SIDE, facecolor=fill, edgecolor=INK,
                                 linewidth=0.8, linestyle="--" if dashed else "-"))


def buffer_fills() -> list[str]:
    """Return the color of each element of the buffer, white for padding."""
    fills = [fill for _, _, size, fill in TENSORS for _ in range(size)]
    return fills + ["white"] * (RANKS * SHARD - len(fills))


def draw() -> Figure:
    figure, axes = canvas(10.2, 3.0)
    at = 0
    axes.text(LEFT - 0.3, 2.2, "tensors", fontsize=10, color=INK, ha="right", va="center")
    axes.text(LEFT - 0.3, 1.32, "flat buffer", fontsize=10, color=INK, ha="right", va="center")
    axes.text(LEFT - 0.3, 0.46, "shards", fontsize=10, color=INK, ha="right", va="center")
    for name, shape, size, fill in TENSORS:
        cells(axes, LEFT + at * SIDE, 2.0, size, fill)
        axes.text(LEFT + (at + size / 2) * SIDE, 2.62, f"{name} {shape}" if size > 1 else name,
                  fontsize=10, color=INK, ha="center", va="center")
        at += size
    fills = buffer_fills()
    for number, fill in enumerate(fills):
        cells(axes, LEFT + number * SIDE, 1.12, 1, fill, dashed=fill == "white")
        rank, place = divmod(number, SHARD)
        cells(axes, LEFT + number * SIDE + (rank - 1.5) * 0.1, 0.25, 1, fill,
              dashed=fill == "white")
        axes.text(LEFT + (number + 0.5) * SIDE + (rank - 1.5) * 0.1, 0.46, str(place), fontsize=8,
                  color=GREY if fill == "white" else INK, ha="center", va="center")
    axes.text(LEFT + (at + 1) * SIDE, 1.68, "padding", fontsize=9, color=GREY, ha="center",
              va="center")
    for rank in range(RANKS):
        axes.text(LEFT + (rank + 0.5) * SHARD * SIDE + (rank - 1.5) * 0.1, 0.1, f"rank {rank}",
                  fontsize=9, color=INK, ha="center", va="center",
                  bbox={"facecolor": PURPLE, "edgecolor": "none", "pad": 1.5})
    return figure
