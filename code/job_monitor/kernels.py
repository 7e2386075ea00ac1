"""Divide a profiled step's GPU time into GEMMs on Tensor Cores, other GEMMs, and other kernels.

The source is the trace that `--profile-execution` writes. As in the profiler's tab, a kernel's name
decides whether it uses Tensor Cores.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import workspace
from labcore.colors import result
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

KINDS = {"tensor": "GEMMs on Tensor Cores", "other": "other GEMMs",
         "rest": "everything else"}
HATCHES = ("", "//", "..")  # not by color alone


@dataclass(frozen=True)
class KernelProfile:
    """The GPU kernels of one profiled step.

    Attributes:
        name: a name for the run.
        milliseconds: time per step, by kernel name; kernels of different streams may overlap.
        software: the virtual GPU's software stack, and the expected errors; empty if measured.
    """

    name: str
    milliseconds: dict[str, float]
    software: str = ""

    @property
    def total(self) -> float:
        return sum(self.milliseconds.values())

    @property
    def tensor_core_share(self) -> float:
        """Fraction of the kernels' time spent in kernels that use Tensor Cores."""
        return self.milliseconds_of("tensor") / self.total

    def milliseconds_of(self, kind: str) -> float:
        """Return the time of the kernels of one of KINDS."""
        return sum(time for name, time in self.milliseconds.items() if kind_of(name) == kind)

    def show(self, count: int = 6) -> None:
        """Print the `count` longest kernels, as in the GPU Kernel view of the profiler's tab."""
        print(f"{self.name}: {self.total:.1f} ms of kernels in a step, "
              + result(f"{self.tensor_core_share:.0%} on Tensor Cores"))
        if self.software:
            print(f"modeled; software stack {self.software}")
        ranked = sorted(self.milliseconds.items(), key=lambda item: -item[1])
        for name, time in ranked[:count]:
            used = "Tensor Cores" if uses_tensor_cores(name) else ""
            print(f"  {time:7.1f} ms  {used:12}  {name[:70]}")


def uses_tensor_cores(kernel: str) -> bool:
    """Return whether a kernel uses Tensor Cores, judged by its name, as in the profiler's tab."""
    from torch_tb_profiler.profiler.tensor_core import TC_Allowlist

    return kernel in TC_Allowlist


def kind_of(kernel: str) -> str:
    if uses_tensor_cores(kernel):
        return "tensor"
    return "other" if "gemm" in kernel else "rest"


def read(name: str, folder: str | Path) -> KernelProfile:
    """Return the latest profile of rank 0 in a run's folder.

    Args:
        name: a name for the run.
        folder: a run_NAME in the job's TensorBoard folder, absolute or relative to the workspace.

    Raises:
        LabError: there is no profile, or it has no GPU kernels.
    """
    run = workspace.home() / folder
    traces = sorted(run.glob("*_gpu0.*.pt.trace.json"), key=lambda path: path.stat().st_mtime_ns)
    if not traces:
        raise LabError(f"no profile in {run}: run a job with --profile-execution yes "
                       "--profile-name NAME, and pass the folder run_NAME")
    trace = json.loads(traces[-1].read_text())
    events = trace["traceEvents"]
    steps = {event["name"] for event in events
             if str(event.get("name", "")).startswith("ProfilerStep#")}
    times: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "kernel":
            times[event["name"]] += event["dur"] / 1000
    if not times or not steps:
        raise LabError(f"{traces[-1]} contains no GPU kernels: did the job run on --device cpu?")
    return KernelProfile(name, {kernel: time / len(steps) for kernel, time in times.items()},
                         trace.get("virtualGpu", {}).get("software", ""))


def plot(*profiles: KernelProfile) -> Drawing:
    """Plot the time of a step in milliseconds, one bar per profile, split by KINDS."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 0.9 + 0.7 * len(profiles)), layout="constrained")
    axes = figure.subplots()
    names = [profile.name for profile in profiles]
    left = [0.0] * len(profiles)
    for number, (kind, title) in enumerate(KINDS.items()):
        widths = [profile.milliseconds_of(kind) for profile in profiles]
        axes.barh(names, widths, left=left, label=title, color=f"C{number}",
                  hatch=HATCHES[number], edgecolor="white")
        left = [before + width for before, width in zip(left, widths, strict=True)]
    described = [profile.name + ": " + ", ".join(
        f"{title} {profile.milliseconds_of(kind):.0f} ms" for kind, title in KINDS.items())
        for profile in profiles]
    axes.invert_yaxis()
    axes.set(xlabel="ms of kernels in a step")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return Drawing(figure, "Time of a step's kernels. " + "; ".join(described) + ".")
