"""Draw losses, gradients, and errors of training in 16 bits, for lab 05."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

import torch

from pipeline_schedules import Drawing

STYLES = ("-", "--", "-.", ":")  # so that color is not the only difference


def draw_losses(runs: Mapping[str, Sequence[float]]) -> Drawing:
    """Plot the loss of each step, one line per run, up to the first loss that is not finite."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    described = []
    for number, (name, losses) in enumerate(runs.items()):
        finite = list(takewhile(math.isfinite, losses))
        label = name if len(finite) == len(losses) else (
            f"{name}: {losses[len(finite)]} from step {len(finite) + 1}".replace("nan", "NaN"))
        axes.plot(range(1, len(finite) + 1), finite, label=label, color=f"C{number}",
                  linestyle=STYLES[number % len(STYLES)],
                  marker="x" if len(finite) < len(losses) else "")
        described.append(f"{label}, from {finite[0]:.2f} to {finite[-1]:.2f}" if finite else label)
    axes.set(xlabel="step", ylabel="loss", title="Training loss (real, on the CPU)")
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Training loss over steps: " + "; ".join(described) + ".")


def draw_histograms(counts: Mapping[str, Sequence[int]], lowest: int, rounded: int) -> Drawing:
    """Draw histograms of gradients over their exponents, one row per layer.

    Args:
        counts: for each layer, the number of gradients with each exponent.
        lowest: the exponent of the first count.
        rounded: the exponent up to which fp16 rounds to 0, which is marked.
    """
    from matplotlib.figure import Figure

    rows = {name: torch.tensor([float(count) for count in row]) for name, row in counts.items()}
    table = torch.stack([row / row.sum() for row in rows.values()])
    figure = Figure(figsize=(8, 1.3 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table.numpy(), aspect="auto", cmap="Blues",
                        extent=(lowest, lowest + table.shape[1], len(rows) - 0.5, -0.5))
    axes.axvline(rounded, color="C3", label=f"smaller than $2^{{{rounded}}}$: 0 in fp16")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(xlabel="exponent of the gradient (base 2)")
    axes.legend(loc="upper right")
    figure.colorbar(image, ax=axes, label="share of the layer")
    below = (table * (torch.arange(table.shape[1]) + lowest < rounded)).sum(1)
    return Drawing(figure, "Shares of gradients by exponent, one row per layer. Below "
                   f"2**{rounded}, where fp16 rounds to 0: " + ", ".join(
                       f"{name} {share:.0%}"
                       for name, share in zip(rows, below.tolist(), strict=True)) + ".")


def draw_errors(errors: Mapping[str, Sequence[float]]) -> Drawing:
    """Plot the relative error of an accumulated gradient over the number of micro-batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, row) in enumerate(errors.items()):
        axes.plot(range(1, len(row) + 1), row, label=name, color=f"C{number}",
                  linestyle=STYLES[number % len(STYLES)])
    axes.set_yscale("log")
    axes.set(xlabel="micro-batches accumulated", ylabel="relative error of the sum")
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Relative error of the accumulated gradient: " + "; ".join(
        f"in {name} {row[0]:.1e} after the first micro-batch and {row[-1]:.1e} after the last"
        for name, row in errors.items()) + ".")
