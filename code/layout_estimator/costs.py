"""Compare the estimated time and memory of several settings of the trainer, for labs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labcore.colors import bad, good
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

GIB = 2**30


@dataclass(frozen=True)
class Cost:
    """The estimate of one setting, as `pretrain_gpt.py --estimate` computes it.

    Attributes:
        name: name of the setting.
        card: the virtual GPU.
        software: its software stack, and the expected error of modeled times.
        milliseconds: time per iteration.
        tokens_per_second: throughput of the whole cluster.
        states: GiB of parameters, gradients, and optimizer state of the fullest rank.
        activations: GiB of its activations at the peak of the passes.
        update: GiB that the optimizer step allocates after the activations are freed.
        total: GiB allocated at its peak, including CUDA and NCCL.
        capacity: GiB of memory that the GPU has.
        fits: whether every rank fits.
        share_of_peak: MFU, from 0 to 1.
        communication: share of time waiting for collectives, from 0 to 1.
        bubble: share of time waiting for other stages, from 0 to 1.
        by_stage: GiB of activations of a rank of each pipeline stage.
    """

    name: str
    card: str
    software: str
    milliseconds: float
    tokens_per_second: float
    states: float
    activations: float
    update: float
    total: float
    capacity: float
    fits: bool
    share_of_peak: float
    communication: float
    bubble: float
    by_stage: tuple[float, ...]


def of(settings: Mapping[str, str], flags: str) -> list[Cost]:
    """Return the cost of each setting.

    Args:
        settings: {name: the flags that only this setting has}.
        flags: the flags that all settings share.

    Raises:
        LabError: the trainer does not accept the flags of a setting.
    """
    from layout_estimator.requests import EstimateError, estimate

    costs, measured = [], {}
    for name, own in settings.items():
        try:
            config, _, plan = estimate([*flags.split(), *own.split()], measured)
        except EstimateError as error:
            raise LabError(f"{name}: {error}") from None
        full = plan.fullest
        costs.append(Cost(
            name, plan.card, plan.software, 1000 * plan.seconds_per_iteration,
            config.global_batch_size * config.seq_length / plan.seconds_per_iteration,
            (full.weights + full.gradients + full.optimizer) / GIB, full.activations / GIB,
            full.update / GIB, full.total / GIB, plan.capacity / GIB, plan.fits, plan.share_of_peak,
            plan.communication, plan.bubble,
            tuple(stage.activations / GIB for stage in plan.memory)))
    return costs


def show(costs: Sequence[Cost]) -> None:
    """Print the costs as a table."""
    width = max(len(cost.name) for cost in costs)
    print(f"{costs[0].card}, modeled; memory in GiB, of {costs[0].capacity:.2f}\n"
          f"software stack {costs[0].software}")
    print(f"{'':{width}} {'ms':>8} {'tokens/s':>9} {'states':>7} {'activ.':>7} {'update':>7} "
          f"{'all':>7}  fits {'of peak':>8} {'waiting':>8}")
    for cost in costs:
        fits = f"{good('yes')} " if cost.fits else f"{bad('NO')}  "
        print(f"{cost.name:{width}} {cost.milliseconds:8,.1f} {cost.tokens_per_second:9,.0f} "
              f"{cost.states:7.2f} {cost.activations:7.2f} {cost.update:7.2f} "
              f"{cost.total:7.2f}  {fits}{cost.share_of_peak:8.1%} {cost.communication:8.1%}")


def plot(costs: Sequence[Cost]) -> Drawing:
    """Plot time per iteration against memory, with a line at the GPU's capacity."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 3.8))
    axes = figure.subplots()
    width = max(cost.total for cost in costs) - min(cost.total for cost in costs)
    height = max(cost.milliseconds for cost in costs) - min(cost.milliseconds for cost in costs)
    for cost in costs:
        # The label goes left of its point if another point is close on the right.
        left = any(0 < other.total - cost.total < 0.25 * width
                   and abs(cost.milliseconds - other.milliseconds) < 0.08 * height
                   for other in costs)
        axes.plot(cost.total, cost.milliseconds, linestyle="", markersize=7,
                  marker="o" if cost.fits else "x", color="C0" if cost.fits else "C3")
        axes.annotate(cost.name, (cost.total, cost.milliseconds), fontsize=8,
                      xytext=(-5 if left else 5, 4), ha="right" if left else "left",
                      textcoords="offset points")
    axes.axvline(costs[0].capacity, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="GiB at the peak", ylabel="ms per iteration", title=f"{costs[0].card}: "
             "memory against time (modeled; x: does not fit)")
    axes.margins(x=0.2, y=0.15)
    axes.grid(alpha=0.3)
    descriptions = "; ".join(f"{cost.name} {cost.milliseconds:.0f} ms and {cost.total:.1f} GiB"
                     + ("" if cost.fits else ", which does not fit") for cost in costs)
    return Drawing(figure, f"Time over memory on a {costs[0].card}: {descriptions}.")
