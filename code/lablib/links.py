"""Measure or model the transfer times between two ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from labcore import workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Drawing
    from virtualgpu.net.topology import Topology

SIZES = tuple(4**n for n in range(1, 16))  # bytes of modeled transfers, from 4 B to 1 GiB
LINE = re.compile(r"^message of (\d+) bytes: (\d+(?:\.\d+)?) us$", re.M)  # from code/messages.py


class Fit(NamedTuple):
    """A transfer of s bytes takes `latency` (seconds) + s / `bandwidth` (bytes per second)."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Curve:
    """Measured or modeled transfers in one direction.

    Attributes:
        name: the name of the link.
        sizes: the sizes, in bytes.
        seconds: the fastest measurement of each size.
        points: all measurements, as pairs (bytes, seconds).
    """

    name: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, name: str, points: Sequence[tuple[int, float]]) -> Curve:
        """Return the curve of some measurements.

        Args:
            name: the name of the link.
            points: pairs (bytes, seconds), with one or more of each size.
        """
        sizes = tuple(dict.fromkeys(size for size, _ in points))
        return cls(name, sizes, tuple(min(seconds for one, seconds in points if one == size)
                                      for size in sizes), tuple(points))

    @property
    def fit(self) -> Fit:
        """Latency and bandwidth, estimated so that other load on the machine hardly matters.

        The fastest small transfer is all latency. The bandwidth is the median of the last three
        differences between large transfers. (A least-squares line would follow caches and buffers.)
        """
        steps = [(size - before, time - earlier) for (before, earlier), (size, time) in pairwise(
            zip(self.sizes[-4:], self.seconds[-4:], strict=True))]
        bandwidths = [size / time for size, time in steps if time > 0]
        return Fit(min(self.seconds[:3]),
                   median(bandwidths) if bandwidths else self.sizes[-1] / self.seconds[-1])

    def __str__(self) -> str:
        fit = self.fit
        return (f"{self.name}: latency {fit.latency * 1e6:,.1f} us, "
                f"bandwidth {fit.bandwidth / 1e9:,.3g} GB/s")


def read(name: str, path: str | Path) -> Curve:
    """Read the output of code/messages.py.

    Args:
        name: the name of the link.
        path: the file, absolute or relative to the workspace.

    Raises:
        LabError: the file has fewer than two measurements.
    """
    file = workspace.home() / path
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"no measurement at {file}: {error.strerror}; run the cell that measures "
                       "first") from error
    rows = LINE.findall(text)
    if len(rows) < 2:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise LabError(f"{file} contains no measurement; its last line is: {last}")
    return Curve.of(name, [(int(size), float(microseconds) / 1e6) for size, microseconds in rows])


def virtual(card: str, network: str | None = None) -> Curve:
    """Return modeled transfers between two virtual GPUs.

    Args:
        card: the GPU model.
        network: the network between their nodes, such as "ethernet:25gbit"; None if both are on
            one node.

    Raises:
        LabError: the GPU model or the network is unknown.
    """
    from virtualgpu.net.collectives import message
    from virtualgpu.net.intranode import SHARED_MEMORY, pair

    nodes = ("node1", "node1") if network is None else ("node1", "node2")
    topology = _topology(card, nodes, network)
    wire = topology.p2p_path(0, 1)
    if network is None:
        name = pair(*topology.seats).name
        kind = "PCIe via host memory" if name == SHARED_MEMORY else name
        title = f"{kind} of a {topology.cards[0].name}"
    else:
        title = topology.network.name
    return Curve.of(f"virtual {title}", [(size, message(wire, size)) for size in SIZES])


def all_reduce(card: str, gpus: Sequence[int], size: int) -> float:
    """Return the modeled seconds of an all-reduce on some GPUs of one node.

    Args:
        card: the GPU model.
        gpus: their numbers on the node.
        size: the tensor's size, in bytes.

    Raises:
        LabError: the GPU model is unknown.
    """
    from virtualgpu.net.collectives import all_reduce

    node = _topology(card, ("node1",) * len(gpus), slots=tuple(gpus))
    return all_reduce(node.path(range(len(gpus))), size)


def _topology(card: str, nodes: tuple[str, ...], network: str | None = None,
              slots: tuple[int, ...] = ()) -> Topology:
    """Return the topology of virtual GPUs of one model.

    Args:
        card: the GPU model.
        nodes: the node of each GPU.
        network: the network between the nodes; None for the usual one of this model.
        slots: the number of each GPU on its node; empty if they are in order.

    Raises:
        LabError: the GPU model or the network is unknown.
    """
    from virtualgpu.core.cards import find
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.net.network import parse
    from virtualgpu.net.topology import Topology

    try:
        sheet = find(card)
        return Topology(nodes, (sheet,) * len(nodes), parse(network or sheet.network), slots)
    except VirtualGpuError as error:
        raise LabError(str(error)) from error


def plot(*curves: Curve) -> Drawing:
    """Plot time and bandwidth over the size, and each curve's fit as a thin line."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(9.5, 4), layout="constrained")
    times, rates = figure.subplots(1, 2)
    for number, curve in enumerate(curves):
        marker, color = "osD^v*"[number % 6], f"C{number}"  # so that color is not all
        fitted = [curve.fit.latency + size / curve.fit.bandwidth for size in curve.sizes]
        bandwidths = _rates(curve.sizes, curve.seconds)
        times.loglog(curve.sizes, curve.seconds, marker=marker, markersize=4, linestyle="",
                     color=color, label=curve.name)
        times.loglog(curve.sizes, fitted, linewidth=1, color=color)
        rates.loglog(curve.sizes, bandwidths, marker=marker, markersize=4, linestyle="",
                     color=color)
        rates.loglog(curve.sizes, _rates(curve.sizes, fitted), linewidth=1, color=color)
    times.set(xlabel="bytes", ylabel="seconds", title="Time of a transfer")
    rates.set(xlabel="bytes", ylabel="bytes per second", title="Bandwidth of a transfer")
    for axes in (times, rates):
        axes.grid(alpha=0.3)
    times.legend(fontsize=8)
    return Drawing(figure, "Time and bandwidth of transfers over their size: the time is flat at "
                   "first and then grows in proportion to it. " + "; ".join(map(str, curves)) + ".")


def _rates(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    return [size / time for size, time in zip(sizes, seconds, strict=True)]
