"""Which processes a two-node job starts, and where."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, arrow, box, canvas


def draw() -> Figure:
    figure, axes = canvas(9.2, 4.6)
    box(axes, 3.2, 3.95, 2.8, 0.5, "sbatch: the script, once", fill=ORANGE)
    axes.text(6.15, 4.2, "srun: one task per node", fontsize=10, color=GREY, va="center")
    for node, left in ((0, 0.2), (1, 4.8)):
        box(axes, left, 0.02, 4.2, 3.48, f"slurmnode{node + 1}   (node {node})", fill="#f7f9fa",
            top=True, size=12)
        middle = left + 2.1
        box(axes, middle - 1.4, 2.2, 2.8, 0.55, f"torchrun --node_rank {node}", fill=BLUE)
        arrow(axes, (4.6, 3.95), (middle, 2.77), bend=0.12 if node else -0.12)
        for local, x in ((0, left + 0.25), (1, left + 2.25)):
            box(axes, x, 0.5, 1.7, 1.05, f"rank {2 * node + local}\nlocal rank {local}", fill=GREEN)
            arrow(axes, (middle, 2.2), (x + 0.85, 1.57))
    # All rendezvous at rank 0's node before the first step.
    for x in (3.3, 5.9, 7.9):
        arrow(axes, (x, 0.5), (1.3, 0.48), bend=-0.09, color=GREY, dashed=True)
    axes.text(4.6, -0.18, "dashed: all ranks rendezvous at MASTER_ADDR, the first node",
              ha="center", va="center", fontsize=10, color=INK)
    return figure
