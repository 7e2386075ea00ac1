"""Measure GEMMs on a CPU, or model them on a virtual GPU, and plot them under the roofline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

ITEM_SIZE = {"fp32": 4, "fp16": 2, "bf16": 2}  # bytes
# Lines that code/matmul.py prints.
COPY = re.compile(r"^copy of (\d+) bytes: (\d+(?:\.\d+)?) us$", re.M)
GEMM = re.compile(r"^(\w+) GEMM \[(\d+), (\d+)\] x \[\d+, (\d+)\]: (\d+(?:\.\d+)?) us$", re.M)


@dataclass(frozen=True)
class Gemm:
    """One GEMM [m, k] x [k, n], and its time in seconds."""

    dtype: str
    m: int
    n: int
    k: int
    seconds: float

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return 2 * self.m * self.n * self.k / self.seconds

    @property
    def intensity(self) -> float:
        """FLOPs per byte that must be read or written at least once."""
        m, n, k = self.m, self.n, self.k
        return 2 * m * n * k / (ITEM_SIZE[self.dtype] * (m * k + k * n + m * n))


@dataclass(frozen=True)
class Machine:
    """A CPU or GPU, with the GEMMs that it ran.

    Attributes:
        name: the machine's name, with the data type of a virtual GPU.
        peak: FLOP/s, the best measurement of a CPU or the data sheet's figure of a virtual GPU.
        bandwidth: memory bandwidth in bytes/s, from the same source.
        gemms: the GEMMs that it ran.
    """

    name: str
    peak: float
    bandwidth: float
    gemms: tuple[Gemm, ...]

    @property
    def ridge(self) -> float:
        """The arithmetic intensity (FLOP/byte) at which the two limits are equal."""
        return self.peak / self.bandwidth


def read(path: str | Path) -> Machine:
    """Read the output of code/matmul.py.

    Args:
        path: the file, absolute or relative to the workspace.

    Raises:
        LabError: the measurement is missing or incomplete.
    """
    file = workspace.home() / path
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"no measurement at {file}: {error.strerror}; run the cell that measures "
                       "first") from error
    copy, rows = COPY.search(text), GEMM.findall(text)
    if copy is None or not rows:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise LabError(f"{file} contains no complete measurement; its last line is: {last}")
    gemms = tuple(Gemm(dtype, int(m), int(n), int(k), float(time) / 1e6)
                  for dtype, m, k, n, time in rows)
    copied, microseconds = int(copy[1]), float(copy[2])
    return Machine("this machine's CPU", max(one.rate for one in gemms),
                   2 * copied / (microseconds / 1e6), gemms)  # each byte is read and written


def virtual(card: str, dtype: str, shapes: Sequence[tuple[int, int, int]]) -> Machine:
    """Return modeled GEMMs on a virtual GPU.

    Args:
        card: the GPU model.
        dtype: "fp32", "fp16", or "bf16".
        shapes: the shape of each GEMM, (m, n, k).

    Raises:
        LabError: the GPU model is unknown, or lacks the data type.
    """
    from virtualgpu.core import cards
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.core.gpu import VirtualGpu
    from virtualgpu.core.rules.gemm import alignment
    from virtualgpu.core.rules.work import GemmShape, KernelWork

    try:
        sheet = cards.find(card)
    except VirtualGpuError as error:
        raise LabError(str(error)) from error
    if dtype not in sheet.tflops or dtype not in ITEM_SIZE:
        raise LabError(f"{sheet.name} has no {dtype}; nearest: "
                       f"{', '.join(name for name in sheet.tflops if name in ITEM_SIZE)}")
    gpu = VirtualGpu(sheet)
    item = ITEM_SIZE[dtype]
    gemms = []
    for m, n, k in shapes:
        size = item * (m * k + k * n + m * n)
        shape = GemmShape(dtype, 1, m, n, k, alignment(item * n, item * k))
        gemms.append(Gemm(dtype, m, n, k, gpu.seconds(KernelWork(size, gemm=shape))))
    return Machine(f"virtual {sheet.name}, {dtype}", sheet.tflops[dtype] * 1e12, sheet.bandwidth,
                   tuple(gemms))


def plot(*machines: Machine) -> Drawing:
    """Plot the FLOP/s of the GEMMs under the roof of each machine."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    described = []
    for number, machine in enumerate(machines):
        color = f"C{number}"
        points = [one.intensity for one in machine.gemms]
        across = [min(points) / 2, machine.ridge, max(*points, machine.ridge) * 4]
        axes.loglog(across, [min(machine.peak, at * machine.bandwidth) for at in across],
                    color=color, linewidth=1.4)
        axes.loglog(points, [one.rate for one in machine.gemms], linestyle="", markersize=5,
                    marker="osD^"[number % 4], color=color, label=machine.name)
        best = max(one.rate for one in machine.gemms)
        described.append(f"{machine.name}: the roof rises to {machine.peak:.3g} FLOP/s at "
                         f"{machine.ridge:.3g} FLOP/byte; the best GEMM reaches {best:.3g}")
    axes.set(xlabel="arithmetic intensity (FLOP per byte)", ylabel="FLOP/s",
             title="Roofline: lines are limits, points are GEMMs")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9, loc="lower right")
    return Drawing(figure, "Roofline. " + "; ".join(described) + ".")


def plot_sizes(machine: Machine, every: int | None = None) -> Drawing:
    """Plot the TFLOP/s of the GEMMs over n.

    Args:
        machine: a machine with GEMMs of different n.
        every: mark the multiples of this number; None marks none.
    """
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    rates = [(one.n, one.rate / 1e12) for one in machine.gemms]
    axes.plot(*zip(*rates, strict=True), linewidth=1, color="C0")
    best, worst = max(rate for _, rate in rates), min(rate for _, rate in rates)
    described = f"{machine.name}: between {worst:.3g} and {best:.3g} TFLOP/s"
    if every:
        marked = [(n, rate) for n, rate in rates if n % every == 0]
        axes.plot(*zip(*marked, strict=True), linestyle="", marker="o", color="C1",
                  label=f"multiples of {every}")
        axes.legend(fontsize=9)
        described += f"; the multiples of {every} reach at least {min(r for _, r in marked):.3g}"
    axes.set(xlabel="n", ylabel="TFLOP/s", title=machine.name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    return Drawing(figure, f"TFLOP/s over n. {described}.")
