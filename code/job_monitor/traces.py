"""Read GPU profiles in a notebook: memory over time, and what a GPU does near the peak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import workspace
from labcore.colors import result
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

MIB_IN_GIB = 1024
CUDA = 1  # c10::DeviceType, in a profile's memory events
PLATEAU = 0.97  # of the peak; fluctuations within single operations are smaller than the rest
KINDS = {"gemm": "GEMMs", "nccl": "communication"}  # by a substring of the kernel's name
OTHER = "other kernels"


@dataclass(frozen=True)
class Plateau:
    """The longest interval in which the memory stays near its peak.

    Attributes:
        start: its start, in milliseconds.
        end: its end, in milliseconds.
        freed: GiB freed at once at its end.
        shares: the fraction of its time spent in each kind of kernel.
        busy: the fraction of its time in which any kernel runs.
    """

    start: float
    end: float
    freed: float
    shares: dict[str, float]
    busy: float


@dataclass(frozen=True)
class GpuTrace:
    """One rank's profile.

    Attributes:
        rank: the rank.
        memory: pairs (time in milliseconds, GiB allocated from then on).
        kernels: the kernels as (kind, start, end), in milliseconds.
    """

    rank: int
    memory: tuple[tuple[float, float], ...]
    kernels: tuple[tuple[str, float, float], ...]

    @property
    def peak(self) -> float:
        return max(level for _, level in self.memory)

    @property
    def plateau(self) -> Plateau:
        """The longest interval in which the memory stays near its peak."""
        threshold, start, best = PLATEAU * self.peak, None, (0.0, 0.0, 0.0)
        for (time, level), (after, lower) in pairwise(self.memory):
            if level < threshold:
                start = None
                continue
            start = time if start is None else start
            if after - start > best[1] - best[0]:
                best = (start, after, max(level - lower, 0.0))
        return Plateau(*best, *self.during(*best[:2]))

    def during(self, start: float, end: float) -> tuple[dict[str, float], float]:
        """Return the share of an interval by kind of kernel, and the share with any kernel.

        Args:
            start: the interval's start, in milliseconds.
            end: the interval's end, in milliseconds.
        """
        pieces = sorted((max(begin, start), min(stop, end), kind)
                        for kind, begin, stop in self.kernels if begin < end and stop > start)
        length = max(end - start, 1e-9)
        shares = {kind: sum(stop - begin for begin, stop, which in pieces if which == kind) / length
                  for kind in (*KINDS.values(), OTHER)}
        busy, until = 0.0, start
        for begin, stop, _ in pieces:
            busy += max(stop - max(begin, until), 0.0)
            until = max(until, stop)
        return shares, busy / length


def read(folder: str | Path, *ranks: int) -> list[GpuTrace]:
    """Return the latest profile of each rank.

    Args:
        folder: a run_NAME in the job's TensorBoard folder, absolute or relative to the workspace.
        ranks: the ranks whose profiles to read.

    Raises:
        LabError: there is no profile, or it has no GPU memory events.
    """
    run = workspace.home() / folder
    traces = []
    for rank in ranks:
        files = sorted(run.glob(f"*_gpu{rank}.*.pt.trace.json"),
                       key=lambda file: file.stat().st_mtime_ns)
        if not files:
            raise LabError(f"no profile of rank {rank} in {run}: submit the job with "
                           "--profile-execution yes and at least 4 iterations")
        traces.append(parse(rank, json.loads(files[-1].read_text())["traceEvents"]))
    return traces


def parse(rank: int, events: Sequence[dict]) -> GpuTrace:
    """Return the trace in a profile's events; its time starts at 0.

    Args:
        rank: the rank.
        events: the `traceEvents`, of a GPU or of a virtual GPU.

    Raises:
        LabError: no event tells how much GPU memory is allocated.
    """
    levels = sorted(_modeled_memory(events) or _measured_memory(events))
    if not levels:
        raise LabError(f"the profile of rank {rank} has no GPU memory events: did the job run on "
                       "--device cpu?")
    begin = levels[0][0]
    kernels = [(_kind(event["name"]), (event["ts"] - begin) / 1000,
                (event["ts"] + event["dur"] - begin) / 1000)
               for event in events if event.get("cat") == "kernel" and event.get("ph") == "X"]
    return GpuTrace(rank, tuple(((time - begin) / 1000, mib / MIB_IN_GIB) for time, mib in levels),
                    tuple(kernels))


def _modeled_memory(events: Sequence[dict]) -> list[tuple[float, float]]:
    """Return (microseconds, MiB allocated) from the counter of a virtual GPU's profile."""
    return [(event["ts"], event["args"]["allocated"]) for event in events
            if event.get("ph") == "C" and event["name"].startswith("memory")]


def _measured_memory(events: Sequence[dict]) -> list[tuple[float, float]]:
    """Return (microseconds, MiB allocated) from the allocations that PyTorch's profiler records."""
    return [(event["ts"], event["args"]["Total Allocated"] / 2**20) for event in events
            if event.get("name") == "[memory]" and event["args"].get("Device Type") == CUDA]


def _kind(kernel: str) -> str:
    return next((kind for word, kind in KINDS.items() if word in kernel), OTHER)


def show(traces: Sequence[GpuTrace]) -> None:
    """Print when each rank's memory stays near its peak, and what its GPU does meanwhile."""
    for trace in traces:
        flat = trace.plateau
        print(f"rank {trace.rank}: flat from {flat.start:.0f} to {flat.end:.0f} ms near "
              f"{trace.peak:.2f} GiB (virtual), then "
              f"{result(f'{flat.freed:.3f} GiB')} are freed at once")
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in flat.shares.items())
        print(f"        meanwhile: {shares}; {result(f'idle {1 - flat.busy:.0%}')}")


def memory(traces: Sequence[GpuTrace]) -> Drawing:
    """Plot the memory of each rank over time, with the plateau shaded."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(9, 1 + 2.1 * len(traces)), layout="constrained")
    panels = figure.subplots(len(traces), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    described = []
    for axes, trace in zip(panels, traces, strict=True):
        times, levels = zip(*trace.memory, strict=True)
        flat = trace.plateau
        axes.axvspan(flat.start, flat.end, color="C1", alpha=0.25)
        axes.step(times, levels, where="post", linewidth=1)
        axes.set(ylabel="GiB", title=f"rank {trace.rank} (virtual)")
        axes.grid(alpha=0.3)
        described.append(f"rank {trace.rank} between {min(levels):.1f} and {trace.peak:.1f} GiB, "
                         f"flat near the peak from {flat.start:.0f} to {flat.end:.0f} ms")
    panels[-1].set_xlabel("ms; shaded: the longest flat stretch near the peak")
    panels[0].set_ylim(bottom=0)
    return Drawing(figure, "Memory allocated over time, in hills that rise and fall in stairs: "
                   + "; ".join(described) + ".")
