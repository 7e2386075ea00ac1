"""Compare runs in different layouts: their time, memory, and communication side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from job_monitor import bytes_sent, logs
from labcore import workspace
from labcore.colors import result
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

MEMORY = re.compile(r"^\[Rank (\d+)\] .*max allocated: ([\d.]+)")
PARAMETERS = re.compile(r"model parallel rank \((\d+), (\d+)\): (\d+)")


class ProfiledJob(Protocol):
    """A Slurm job that has ended: its ID, its name, and its log file."""

    job: int
    name: str
    log: Path


@dataclass(frozen=True)
class LayoutRun:
    """The measurements of one layout, from a job's log and profile.

    Attributes:
        name: the layout's name.
        milliseconds: elapsed time per iteration.
        tokens_per_second: the throughput of all ranks together.
        parameters: number of parameters, by (tensor-parallel rank, stage).
        memory: peak memory in GiB, by rank (of one replica).
        sent: bytes sent per iteration, by rank.
        modeled: whether the GPUs were virtual.
        software: the virtual GPUs' software stack, and the expected errors of what is modeled.
    """

    name: str
    milliseconds: float
    tokens_per_second: float
    parameters: dict[tuple[int, int], int]
    memory: dict[int, float]
    sent: dict[int, float]
    modeled: bool
    software: str = ""

    @property
    def peak(self) -> float:
        return max(self.memory.values())

    @property
    def megabytes(self) -> float:
        """The largest number of MB (10**6 bytes) that a rank sends per iteration."""
        return max(self.sent.values()) / 1e6


def read(name: str, job: ProfiledJob, sequence_length: int) -> LayoutRun:
    """Read the measurements of a job that has ended and was profiled (--profile-execution yes).

    Args:
        name: a name for the layout.
        sequence_length: tokens per sample.

    Raises:
        LabError: the log or the profile is missing or incomplete.
    """
    iterations = logs.read(job.log).iterations
    if not iterations:
        raise LabError(f"{name}: job {job.job} has completed no iteration; jobs.wait() shows why")
    last = iterations[-1]
    memory = {int(match[1]): float(match[2]) / 1024  # the log has MiB
              for line in logs.lines(job.log, "max allocated: ") if (match := MEMORY.search(line))}
    parameters = {(int(match[1]), int(match[2])): int(match[3])
                  for line in logs.lines(job.log, "number of parameters")
                  if (match := PARAMETERS.search(line))}
    profile = workspace.home() / "megatron" / "tensorboard" / job.name / "run_default"
    sent = bytes_sent.read(profile)
    modeled = any("modeled" in line for line in job.log.read_text().splitlines())
    return LayoutRun(name, last.milliseconds,
                     last.global_batch * sequence_length / last.milliseconds * 1000, parameters,
                     memory, {rank: sum(kinds.values()) for rank, kinds in sent.items()}, modeled,
                     next(iter(logs.lines(job.log, "software stack ")), ""))


def extrapolate(measured: Mapping[int, float], layers: int) -> float:
    """Return a figure of a deep model, from those of two models with fewer layers.

    Args:
        measured: the figure of each of the two models, by its number of layers.
        layers: the number of layers of the deep model.
    """
    (few, before), (some, after) = sorted(measured.items())
    return before + (after - before) * (layers - few) / (some - few)


def show(runs: Sequence[LayoutRun]) -> None:
    """Print a table with the best value of each column highlighted."""
    columns = [("ms", 9, [run.milliseconds for run in runs], "{:,.1f}", min),
               ("tokens/s", 10, [run.tokens_per_second for run in runs], "{:,.0f}", max),
               ("parameters", 12, [max(run.parameters.values()) for run in runs], "{:,}", min),
               ("GiB", 7, [run.peak for run in runs], "{:.2f}", min),
               ("MB sent", 9, [run.megabytes for run in runs], "{:,.1f}", None)]
    width = max(len(run.name) for run in runs)
    print(f"one iteration{' (virtual)' if runs[0].modeled else ''}; the last three columns are the "
          "maximum over all ranks")
    for software in dict.fromkeys(run.software for run in runs if run.software):
        print(software)
    print(" " * width + "".join(f"{title:>{size}}" for title, size, *_ in columns))
    for row, run in enumerate(runs):
        line = f"{run.name:{width}}"
        for _, size, values, form, best in columns:
            cell = f"{form.format(values[row]):>{size}}"
            is_best = best and values[row] == best(values)
            line += result(cell) if is_best else cell
        print(line)


def plot(runs: Sequence[LayoutRun]) -> Drawing:
    """Plot time, memory, and bytes as bars, one row per run."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    kind = " (virtual)" if runs[0].modeled else ""
    panels = {"ms per iteration": [run.milliseconds for run in runs],
              "peak GiB of any rank": [run.peak for run in runs],
              "MB that a rank sends": [run.megabytes for run in runs]}
    figure = Figure(figsize=(9, 0.5 * len(runs) + 1.2), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, 3, sharey=True), panels.items(),
                                     strict=True):
        bars = axes.barh([run.name for run in runs], values,
                         color=[f"C{number}" for number in range(len(runs))])
        axes.bar_label(bars, fmt="{:,.1f}", padding=3, fontsize=8)
        axes.set_title(title + kind, fontsize=10)
        axes.margins(x=0.3)
        axes.invert_yaxis()
    values = "; ".join(f"{run.name} {run.milliseconds:.0f} ms, {run.peak:.1f} GiB, "
                       f"{run.megabytes:.0f} MB" for run in runs)
    return Drawing(figure, "Time of an iteration, largest peak memory of any rank, and largest "
                   f"number of bytes that a rank sends in an iteration{kind}: {values}.")
