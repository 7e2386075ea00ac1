"""The same training on one rank and on several: time, memory and messages of runs side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from job_monitor import logs, wire
from labcore import workspace
from labcore.colors import result
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

MEMORY = re.compile(r"^\[Rank (\d+)\] .*max allocated: ([\d.]+)")
PARAMETERS = re.compile(r"model parallel rank \((\d+), (\d+)\): (\d+)")


class Job(Protocol):
    """A job that Slurm knows: its number, its name, and the file of its log."""

    job: int
    name: str
    log: Path


@dataclass(frozen=True)
class Run:
    """What one job's log and profile say.

    tokens_per_second: of all ranks together. parameters: by (tensor rank, stage).
    memory: GiB at the peak, by rank (of one replica). sent: bytes in an iteration, by rank.
    """

    name: str
    milliseconds: float
    tokens_per_second: float
    parameters: dict[tuple[int, int], int]
    memory: dict[int, float]
    sent: dict[int, float]
    modeled: bool

    @property
    def peak(self) -> float:
        return max(self.memory.values())

    @property
    def megabytes(self) -> float:
        """Sent by the rank that sends most, in an iteration (10**6 bytes)."""
        return max(self.sent.values()) / 1e6


def read(name: str, job: Job, sequence_length: int) -> Run:
    """The run of a job that is over and was profiled (--profile-execution yes).

    Raises LabError that says what is missing.
    """
    found = logs.read(job.log).iterations
    if not found:
        raise LabError(f"{name}: job {job.job} has finished no iteration; jobs.wait() says why")
    last = found[-1]
    memory = {int(match[1]): float(match[2]) / 1024  # the log has MiB
              for line in logs.lines(job.log, "max allocated: ") if (match := MEMORY.search(line))}
    parameters = {(int(match[1]), int(match[2])): int(match[3])
                  for line in logs.lines(job.log, "number of parameters")
                  if (match := PARAMETERS.search(line))}
    messages = wire.sent(workspace.home() / "megatron" / "tensorboard" / job.name / "run_default")
    modeled = any("modeled" in line for line in job.log.read_text().splitlines())
    return Run(name, last.milliseconds,
               last.global_batch * sequence_length / last.milliseconds * 1000, parameters, memory,
               {rank: sum(kinds.values()) for rank, kinds in messages.items()}, modeled)


def show(runs: Sequence[Run]) -> None:
    """Print a table; the best of each column stands out."""
    columns = [("ms", 9, [run.milliseconds for run in runs], "{:,.1f}", min),
               ("tokens/s", 10, [run.tokens_per_second for run in runs], "{:,.0f}", max),
               ("parameters", 12, [max(run.parameters.values()) for run in runs], "{:,}", min),
               ("GiB", 7, [run.peak for run in runs], "{:.2f}", min),
               ("MB sent", 9, [run.megabytes for run in runs], "{:,.1f}", None)]
    width = max(len(run.name) for run in runs)
    print(f"one iteration{', virtual' if runs[0].modeled else ''}; the last three columns are of "
          "the rank that has most")
    print(" " * width + "".join(f"{title:>{size}}" for title, size, *_ in columns))
    for row, run in enumerate(runs):
        line = f"{run.name:{width}}"
        for _, size, values, form, best in columns:
            cell = f"{form.format(values[row]):>{size}}"
            stands_out = best and values[row] == best(values)
            line += result(cell) if stands_out else cell
        print(line)


def plot(runs: Sequence[Run]) -> Drawing:
    """Time, memory and bytes as bars, one below the other run."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    kind = " (virtual)" if runs[0].modeled else ""
    panels = {"ms per iteration": [run.milliseconds for run in runs],
              "GiB of the fullest rank": [run.peak for run in runs],
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
    said = "; ".join(f"{run.name} {run.milliseconds:.0f} ms, {run.peak:.1f} GiB, "
                     f"{run.megabytes:.0f} MB" for run in runs)
    return Drawing(figure, "Time of an iteration, memory of the fullest rank, and bytes that a "
                   f"rank sends in an iteration{kind}: {said}.")
