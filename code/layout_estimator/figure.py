"""The figures of --plot: the parts of a plan's memory and time, and the plans of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from layout_estimator.planner import RunPlan

PARTS = {"weights": "#3b6ea5", "gradients": "#7aa6d1", "optimizer": "#b8d0e8",
         "activations": "#e39c37", "update": "#c97b63", "outside": "#9a9a9a"}
TIMES = {"computing": "#3b6ea5", "collectives": "#c0504d", "bubble": "#d9d9d9"}


def save(plan: RunPlan, path: str) -> None:
    """Write a figure of the memory of each stage and of the parts of an iteration.

    Args:
        path: the file; its suffix decides the format.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 1),
                                            layout="constrained")
    _draw_memory(left, plan)
    _draw_time(right, plan)
    figure.suptitle(f"{plan.parameters / 1e9:,.1f} billion parameters on {plan.world_size} "
                    f"{plan.card}: tensor {plan.tensor} x pipeline {plan.pipeline} x data "
                    f"{plan.data}", fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_memory(axes: Axes, plan: RunPlan) -> None:
    """Draw each stage's memory as a stacked bar, with a line at each GPU's capacity."""
    stages, bottom = range(len(plan.memory)), [0.0] * len(plan.memory)
    for name, color in PARTS.items():
        sizes = [memory.parts.get(name, 0.0) / 2**30 for memory in plan.memory]
        axes.bar(stages, sizes, bottom=bottom, color=color, width=0.8,
                 label="CUDA's, NCCL's" if name == "outside" else name)
        bottom = [below + size for below, size in zip(bottom, sizes, strict=True)]
    for name, capacity in plan.capacities.items():
        axes.axhline(capacity / 2**30, color="black", linestyle="--", linewidth=1)
        axes.annotate(f"virtual {name}", (0, capacity / 2**30), xytext=(2, 3),
                      textcoords="offset points", fontsize=8)
    axes.set(xlabel="stage", ylabel="GiB of a rank at its peak")
    if len(plan.gpus) > 1:
        axes.set_xticks(stages, [f"{rank.stage}\n{rank.card}" for rank in plan.memory], fontsize=7)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, 1.3 * max(*(size / 2**30 for size in plan.capacities.values()), *bottom))
    axes.legend(fontsize=8, loc="upper right", ncols=6, columnspacing=1.0, handlelength=1.2)


def _draw_time(axes: Axes, plan: RunPlan) -> None:
    """Draw the parts of an iteration as one stacked bar, in percent."""
    shares = {"bubble": plan.bubble, "collectives": plan.communication}
    shares["computing"] = max(0.0, 1 - sum(shares.values()))
    base = 0.0
    for name, color in TIMES.items():
        axes.bar([0], [100 * shares[name]], bottom=[base], color=color, width=0.5)
        if shares[name] > 0.04:
            axes.annotate(f"{name}\n{shares[name]:.0%}", (0, base + 50 * shares[name]),
                           ha="center", va="center", fontsize=8,
                           color="black" if name == "bubble" else "white")
        base += 100 * shares[name]
    axes.set(xticks=[], ylabel="% of an iteration", xlim=(-0.4, 0.4),
             title=f"{plan.seconds_per_iteration:.3g} s")


def save_front(points: Sequence[tuple[float, float, str]], title: str, path: str) -> None:
    """Write a figure of the Pareto front of plans in time and dollars.

    Args:
        points: (seconds, dollars, name) of each plan's step, the fastest first.
        title: title of the figure.
        path: the file; its suffix decides the format.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot([seconds for seconds, _, _ in points], [dollars for _, dollars, _ in points],
              color="#e39c37", marker="o", drawstyle="steps-post")
    for seconds, dollars, name in points:
        axes.annotate(name, (seconds, dollars), xytext=(4, 4), textcoords="offset points",
                      fontsize=8)
    axes.set(xlabel="seconds per iteration", ylabel="dollars per iteration", title=title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
