"""Draw figures of a student's own runs and functions, each with alternative text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from job_monitor.logs import Log
from labcore import workspace
from labcore.errors import LabError
from pipeline_schedules import Drawing

if TYPE_CHECKING:
    from pipeline_schedules import Steps, Timeline
    from pipeline_schedules.traces import Drawable

MARKERS = "osD^v*"  # so that color is not the only difference
# Of the bubble fraction's plot.
STAGES = (2, 4, 8, 16)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def loss(**runs: Log) -> Drawing:
    """Plot the loss over samples, one line per run: `plots.loss(first=log, second=other)`.

    Raises:
        LabError: a run has no loss.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    described = []
    for number, (name, log) in enumerate(runs.items()):
        points = [(one.samples, one.loss) for one in log.iterations if one.loss is not None]
        if not points:
            raise LabError(f"{name}: the log has no loss yet")
        samples, losses = zip(*points, strict=True)
        axes.plot(samples, losses, marker=MARKERS[number % len(MARKERS)], markersize=4, label=name)
        described.append(f"{name} from {losses[0]:.2f} to {losses[-1]:.2f} "
                         f"over {samples[-1]:,} samples")
    axes.set(xlabel="samples", ylabel="loss", title="Training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Training loss over samples: " + "; ".join(described) + ".")


def curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str, title: str
           ) -> Drawing:
    """Plot several curves.

    Args:
        lines: for each name, the values along both axes.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        title: the title of the figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5))
    axes = figure.subplots()
    described = []
    for number, (name, (across, up)) in enumerate(lines.items()):
        axes.plot(across, up, marker=MARKERS[number % len(MARKERS)], markersize=4, label=name,
                  markevery=max(1, len(up) // 12))
        described.append(f"{name} from {up[0]:.2f} to {up[-1]:.2f}")
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, f"{title}, {y} over {x}: " + "; ".join(described) + ".")


def loss_scale(log: Log) -> Drawing:
    """Plot the loss scale over the steps, and mark the lines of the log with skipped steps.

    Raises:
        LabError: the log has no loss scale.
    """
    from matplotlib.figure import Figure

    lines = [one for one in log.iterations if one.loss_scale is not None]
    if not lines:
        raise LabError("the log has no loss scale yet")
    figure = Figure(figsize=(7, 3))
    axes = figure.subplots()
    axes.step([one.iteration for one in lines], [one.loss_scale for one in lines], where="mid",
              color="C7", linewidth=1)
    kinds = {"steps that were skipped": ("x", [one for one in lines if one.skipped]),
             "steps that were made": ("o", [one for one in lines if not one.skipped])}
    for name, (marker, iterations) in kinds.items():
        axes.plot([one.iteration for one in iterations], [one.loss_scale for one in iterations],
                  linestyle="", marker=marker, label=name)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="iteration", ylabel="loss scale", title="Loss scale")
    axes.grid(alpha=0.3)
    axes.legend()
    skipped = sum(one.skipped or 0 for one in lines)
    return Drawing(figure, f"Loss scale over {lines[-1].iteration} iterations: from "
                   f"{lines[0].loss_scale:,.0f} after the first to {lines[-1].loss_scale:,.0f} "
                   f"after the last; {skipped} steps were skipped.")


def timeline(run: Drawable, dp: int = 0, tp: int = 0) -> Timeline:
    """Return the timeline of a schedule or a run. Raises LabError if it cannot be read.

    Args:
        run: a schedule, or the folder that a run wrote with --timeline, absolute or relative to the
            workspace.
        dp: the data-parallel replica.
        tp: the tensor-parallel rank.
    """
    from pipeline_schedules import ScheduleError, timeline_of

    try:
        return timeline_of(workspace.home() / run if isinstance(run, str) else run, dp=dp, tp=tp)
    except ScheduleError as error:
        raise LabError(str(error)) from None


def pipeline(run: Drawable, title: str = "Pipeline", *, live: bool = True, steps: bool = False,
             simulated: bool = False, dp: int = 0, tp: int = 0) -> Drawing | Steps:
    """Draw a pipeline, with one row per stage. Raises LabError if it cannot be read.

    Args:
        run: a schedule or a folder, as for timeline().
        title: the title of the figure.
        live: also draw the activations that every stage holds.
        steps: add a slider that steps through the actions.
        simulated: below a run, draw its order of passes simulated with their mean durations, on the
            same time scale.
        dp: the data-parallel replica.
        tp: the tensor-parallel rank.
    """
    from pipeline_schedules import draw, draw_beside, draw_steps, replayed
    from pipeline_schedules.drawing import unit_of

    if steps and simulated:
        raise LabError("plots.pipeline: steps and simulated exclude each other; pass one of them")
    run_timeline, unit = timeline(run, dp, tp), unit_of(run, None)
    if simulated:
        return draw_beside({f"{title}, as it ran": run_timeline,
                            f"{title}, simulated": replayed(run_timeline)}, unit, live)
    return (draw_steps(run_timeline, title, unit, live) if steps
            else draw(run_timeline, title, unit, live))


def pipelines(*, live: bool = True, **runs: Drawable) -> Drawing:
    """Draw several pipelines on one time scale.

    For example, `plots.pipelines(gpipe="megatron/timeline/gpipe", mine=...)`.

    Args:
        live: also draw the activations that every stage holds.
        runs: runs or schedules, by name. A schedule has no milliseconds, so it cannot be drawn next
            to a run.

    Raises:
        LabError: there is none, one cannot be read, or a schedule is next to a run.
    """
    from pipeline_schedules import draw_beside

    if not runs:
        raise LabError("plots.pipelines: pass at least one run, as name=run")
    files = [isinstance(run, str | Path) for run in runs.values()]
    if any(files) and any(isinstance(run, list | tuple) for run in runs.values()):
        raise LabError("plots.pipelines: a schedule has no milliseconds, so it cannot be drawn "
                       "next to a run; plots.pipeline(run, simulated=True) simulates with the "
                       "run's times")
    return draw_beside({name.replace("_", " "): timeline(run) for name, run in runs.items()},
                       "ms" if any(files) else "", live)


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
