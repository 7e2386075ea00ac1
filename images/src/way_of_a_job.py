"""The path of a job script from sbatch to its log."""

from __future__ import annotations

from matplotlib.figure import Figure
from style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, arrow, box, canvas


def draw() -> Figure:
    figure, axes = canvas(9.6, 3.5)
    box(axes, 0.1, 1.9, 1.75, 1.1, "your notebook\nor terminal", fill=PURPLE)
    box(axes, 3.2, 0.95, 2.3, 2.4, "Slurm's queue", fill="#f7f9fa", top=True)
    jobs = ("someone else's job", "white"), ("your job  (PD)", ORANGE)
    for row, (text, fill) in enumerate(jobs):
        box(axes, 3.4, 2.25 - 0.65 * row, 1.9, 0.5, text, fill=fill, size=10)
    axes.text(4.35, 1.25, "waits for free resources", ha="center", va="center", fontsize=9,
              color=GREY)
    box(axes, 7.0, 2.2, 2.5, 1.15, "slurmnode1\nyour job runs  (R)", fill=GREEN)
    box(axes, 7.0, 0.95, 2.5, 0.95, "slurmnode2\nidle", fill="white")
    arrow(axes, (1.9, 2.45), (3.15, 2.45))
    axes.text(2.5, 2.62, "sbatch", ha="center", fontsize=10, color=INK)
    arrow(axes, (5.35, 1.85), (6.95, 2.7), bend=0.1)
    axes.text(6.2, 2.62, "starts", ha="center", fontsize=10, color=INK)
    box(axes, 3.2, 0.1, 2.3, 0.55, "the log, in the workspace", fill=BLUE, size=10)
    arrow(axes, (6.97, 2.3), (5.55, 0.45), bend=-0.22)
    axes.text(6.45, 0.55, "its output", ha="left", fontsize=10, color=INK)
    arrow(axes, (3.15, 0.37), (1.0, 1.85), bend=-0.25)
    axes.text(1.2, 0.5, "you read it", ha="center", fontsize=10, color=INK)
    return figure
