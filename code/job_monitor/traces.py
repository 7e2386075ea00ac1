"""Read GPU profiles in a notebook: memory over time, and what a GPU does meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError

MIB_IN_GIB = 1024
CUDA = 1  # c10::DeviceType, in a profile's memory events
KINDS = {"gemm": "GEMMs", "nccl": "communication"}  # by a substring of the kernel's name
OTHER = "other kernels"


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
