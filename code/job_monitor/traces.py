"""Profiles of GPUs in a notebook: the memory over time, and what a GPU does while the memory stays
near its peak."""

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
FLAT = 0.97  # of the peak: the waves of single operations are smaller than the rest
KINDS = {"gemm": "GEMMs", "nccl": "communication"}  # by a part of the kernel's name
OTHER = "other kernels"


@dataclass(frozen=True)
class Flat:
    """The longest stretch near the peak.

    Attributes:
        start: in milliseconds.
        end: in milliseconds.
        freed: GiB that are freed at once at its end.
        shares: of its time, by kind of kernel.
        busy: the share of its time in which any kernel runs.
    """

    start: float
    end: float
    freed: float
    shares: dict[str, float]
    busy: float


@dataclass(frozen=True)
class Trace:
    """One rank's profile.

    Attributes:
        rank: its number.
        memory: pairs (milliseconds, GiB allocated from then on).
        work: the kernels as (kind, start, end), in milliseconds.
    """

    rank: int
    memory: tuple[tuple[float, float], ...]
    work: tuple[tuple[str, float, float], ...]

    @property
    def peak(self) -> float:
        return max(level for _, level in self.memory)

    @property
    def flat(self) -> Flat:
        """The longest stretch in which the memory stays near its peak."""
        least, start, best = FLAT * self.peak, None, (0.0, 0.0, 0.0)
        for (time, level), (after, lower) in pairwise(self.memory):
            if level < least:
                start = None
                continue
            start = time if start is None else start
            if after - start > best[1] - best[0]:
                best = (start, after, max(level - lower, 0.0))
        return Flat(*best, *self.during(*best[:2]))

    def during(self, start: float, end: float) -> tuple[dict[str, float], float]:
        """Return (share of the time by kind of kernel, share in which any kernel runs).

        Args:
            start: in milliseconds.
            end: in milliseconds.
        """
        pieces = sorted((max(begin, start), min(stop, end), kind)
                        for kind, begin, stop in self.work if begin < end and stop > start)
        length = max(end - start, 1e-9)
        shares = {kind: sum(stop - begin for begin, stop, which in pieces if which == kind) / length
                  for kind in (*KINDS.values(), OTHER)}
        busy, until = 0.0, start
        for begin, stop, _ in pieces:
            busy += max(stop - max(begin, until), 0.0)
            until = max(until, stop)
        return shares, busy / length


def read(folder: str | Path, *ranks: int) -> list[Trace]:
    """Return the latest profile of each rank.

    Args:
        folder: a run_NAME in the job's TensorBoard folder, absolute or relative to the workspace.
        ranks: whose profiles to read.

    Raises LabError if there is none, or none of a GPU.
    """
    place = workspace.home() / folder
    found = []
    for rank in ranks:
        files = sorted(place.glob(f"*_gpu{rank}.*.pt.trace.json"),
                       key=lambda file: file.stat().st_mtime_ns)
        if not files:
            raise LabError(f"no profile of rank {rank} in {place}: the job's flag for it is "
                           "--profile-execution yes, and it needs 4 iterations")
        found.append(parse(rank, json.loads(files[-1].read_text())["traceEvents"]))
    return found


def parse(rank: int, events: Sequence[dict]) -> Trace:
    """Return the Trace of a profile's events; its time starts at 0.

    Args:
        rank: whose profile it is.
        events: the `traceEvents`, of a GPU or of a virtual GPU.

    Raises:
        LabError: no event tells how much of a GPU's memory is allocated.
    """
    levels = sorted(_modeled_memory(events) or _measured_memory(events))
    if not levels:
        raise LabError(f"the profile of rank {rank} has no memory of a GPU: was it trained with "
                       "--device cpu?")
    begin = levels[0][0]
    work = [(_kind(event["name"]), (event["ts"] - begin) / 1000,
             (event["ts"] + event["dur"] - begin) / 1000)
            for event in events if event.get("cat") == "kernel" and event.get("ph") == "X"]
    return Trace(rank, tuple(((time - begin) / 1000, mib / MIB_IN_GIB) for time, mib in levels),
                 tuple(work))


def _modeled_memory(events: Sequence[dict]) -> list[tuple[float, float]]:
    """Return (microseconds, MiB allocated) from the counter of a virtual GPU's profile."""
    return [(event["ts"], event["args"]["allocated"]) for event in events
            if event.get("ph") == "C" and event["name"].startswith("memory")]


def _measured_memory(events: Sequence[dict]) -> list[tuple[float, float]]:
    """Return the same from what PyTorch's profiler records of a GPU's allocations."""
    return [(event["ts"], event["args"]["Total Allocated"] / 2**20) for event in events
            if event.get("name") == "[memory]" and event["args"].get("Device Type") == CUDA]


def _kind(kernel: str) -> str:
    return next((kind for word, kind in KINDS.items() if word in kernel), OTHER)


def show(traces: Sequence[Trace]) -> None:
    """Print when each rank's memory stays near its peak, and what its GPU does meanwhile."""
    for trace in traces:
        flat = trace.flat
        print(f"rank {trace.rank}: flat from {flat.start:.0f} to {flat.end:.0f} ms near "
              f"{trace.peak:.2f} GiB (virtual), then "
              f"{result(f'{flat.freed:.3f} GiB')} are freed at once")
        said = ", ".join(f"{kind} {share:.0%}" for kind, share in flat.shares.items())
        print(f"        meanwhile: {said}; {result(f'idle {1 - flat.busy:.0%}')}")


def memory(traces: Sequence[Trace]) -> Drawing:
    """Plot the memory of each rank over time, with the longest flat stretch shaded."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(9, 1 + 2.1 * len(traces)), layout="constrained")
    panels = figure.subplots(len(traces), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    said = []
    for axes, trace in zip(panels, traces, strict=True):
        times, levels = zip(*trace.memory, strict=True)
        flat = trace.flat
        axes.axvspan(flat.start, flat.end, color="C1", alpha=0.25)
        axes.step(times, levels, where="post", linewidth=1)
        axes.set(ylabel="GiB", title=f"rank {trace.rank} (virtual)")
        axes.grid(alpha=0.3)
        said.append(f"rank {trace.rank} between {min(levels):.1f} and {trace.peak:.1f} GiB, flat "
                    f"near the peak from {flat.start:.0f} to {flat.end:.0f} ms")
    panels[-1].set_xlabel("ms; shaded: the longest flat stretch near the peak")
    panels[0].set_ylim(bottom=0)
    return Drawing(figure, "Memory allocated over time, in hills that rise and fall in stairs: "
                   + "; ".join(said) + ".")
