"""Plot functions that a student wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

STAGES = (2, 4, 8, 16)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MARKERS = "osD^v*"  # so that color is not the only difference


def bubbles(bubble: Callable[[int, int], float], stages: Sequence[int] = STAGES,
            micro_batches: Sequence[int] = MICRO_BATCHES) -> Drawing:
    """Plot the bubble fraction over the number of micro-batches, one line per number of stages.

    Args:
        bubble: returns the bubble fraction, 0 to 1, for p stages and m micro-batches.
        stages: the numbers of stages.
        micro_batches: the numbers of micro-batches.

    Raises:
        LabError: `bubble` does not return a number yet.
    """
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    described = []
    for number, p in enumerate(stages):
        shares = [bubble(p, m) for m in micro_batches]
        if not all(isinstance(share, int | float) for share in shares):
            raise LabError(f"bubble({p}, {micro_batches[0]}) is {shares[0]!r}, which is not a "
                           "number: write the function first")
        axes.plot(micro_batches, [100 * share for share in shares], markersize=4,
                  marker=MARKERS[number % len(MARKERS)], label=f"p = {p}")
        described.append(f"p = {p} from {shares[0]:.0%} to {shares[-1]:.0%}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(micro_batches, [str(m) for m in micro_batches])
    axes.set(xlabel="micro-batches m", ylabel="idle, % of the time", title="Bubble fraction")
    axes.grid(alpha=0.3)
    axes.legend(title="stages")
    return Drawing(figure, f"Bubble fraction over {micro_batches[0]} to {micro_batches[-1]} "
                           f"micro-batches: {'; '.join(described)}.")
