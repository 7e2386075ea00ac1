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
class Profile:
    """milliseconds: of a step, by a kernel's name; kernels of different streams may overlap."""

    name: str
    milliseconds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.milliseconds.values())

    @property
    def tensor_core_share(self) -> float:
        """Fraction of the kernels' time spent in kernels that use Tensor Cores."""
        return self.of("tensor") / self.total

    def of(self, kind: str) -> float:
        """Milliseconds of one of KINDS."""
        return sum(time for name, time in self.milliseconds.items() if kind_of(name) == kind)

    def show(self, most: int = 6) -> None:
        """Print the kernels that take most of the time, as the tab's GPU Kernel view lists them."""
        print(f"{self.name}: {self.total:.1f} ms of kernels in a step, "
              + result(f"{self.tensor_core_share:.0%} on Tensor Cores"))
        ranked = sorted(self.milliseconds.items(), key=lambda item: -item[1])
        for name, time in ranked[:most]:
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


def read(name: str, folder: str | Path) -> Profile:
    """The first rank's profile in a run's folder (".../run_NAME"), absolute or relative to the
    workspace; the latest one there. Raises LabError where there is none of a GPU."""
    place = workspace.home() / folder
    found = sorted(place.glob("*_gpu0.*.pt.trace.json"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise LabError(f"no profile in {place}: run a job with --profile-execution yes "
                       "--profile-name NAME, and give the folder run_NAME")
    events = json.loads(found[-1].read_text())["traceEvents"]
    steps = {event["name"] for event in events
             if str(event.get("name", "")).startswith("ProfilerStep#")}
    times: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "kernel":
            times[event["name"]] += event["dur"] / 1000
    if not times or not steps:
        raise LabError(f"{found[-1]} holds no kernels of a GPU: was it trained with --device cpu?")
    return Profile(name, {kernel: time / len(steps) for kernel, time in times.items()})


def plot(*profiles: Profile) -> Drawing:
    """A bar for each: the milliseconds of a step by KINDS."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 0.9 + 0.7 * len(profiles)), layout="constrained")
    axes = figure.subplots()
    names, said = [profile.name for profile in profiles], []
    left = [0.0] * len(profiles)
    for number, (kind, title) in enumerate(KINDS.items()):
        widths = [profile.of(kind) for profile in profiles]
        axes.barh(names, widths, left=left, label=title, color=f"C{number}",
                  hatch=HATCHES[number], edgecolor="white")
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for profile in profiles:
        said.append(profile.name + ": " + ", ".join(
            f"{title} {profile.of(kind):.0f} ms" for kind, title in KINDS.items()))
    axes.invert_yaxis()
    axes.set(xlabel="ms of kernels in a step")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return Drawing(figure, "Time of a step's kernels. " + "; ".join(said) + ".")
