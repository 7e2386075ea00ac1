"""Messages between two ranks: how long they take, measured or modeled."""

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

SIZES = tuple(4**n for n in range(1, 16))  # bytes, of virtual messages: 4 B to 1 GiB
LINE = re.compile(r"^message of (\d+) bytes: (\d+(?:\.\d+)?) us$", re.M)  # of code/messages.py


class Fit(NamedTuple):
    """A message of s bytes takes latency + s / bandwidth. Seconds; bytes per second."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Curve:
    """Measured or modeled transfers in one direction.

    Attributes:
        name: of the link.
        sizes: in bytes.
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
            name: of the link.
            points: pairs (bytes, seconds), with one or more of each size.
        """
        sizes = tuple(dict.fromkeys(size for size, _ in points))
        return cls(name, sizes, tuple(min(seconds for one, seconds in points if one == size)
                                      for size in sizes), tuple(points))

    @property
    def fit(self) -> Fit:
        """Latency and bandwidth, estimated so that a busy machine does not spoil them.

        The fastest small transfer is all latency. Large ones differ by their bytes alone; of the
        last three differences, the median counts. (A least-squares line would follow caches and
        buffers.)
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
    """Read what code/messages.py printed.

    Args:
        name: of the link.
        path: of the file, absolute or relative to the workspace.

    Raises LabError if the file has fewer than two measurements.
    """
    place = workspace.home() / path
    try:
        text = place.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"no measurement at {place}: {error.strerror}; run the cell that measures "
                       "first") from error
    found = LINE.findall(text)
    if len(found) < 2:
        last = (text.strip().splitlines() or ["nothing"])[-1]
        raise LabError(f"{place} holds no measurement; its last line is: {last}")
    return Curve.of(name, [(int(size), float(microseconds) / 1e6) for size, microseconds in found])


def virtual(card: str, network: str | None = None) -> Curve:
    """Modeled messages between two virtual cards: of one node, or over `network`
    ("ethernet:25gbit"). Raises LabError for an unknown card or network."""
    from virtualgpu.core import cards
    from virtualgpu.core.errors import VirtualGpuError
    from virtualgpu.net.collectives import message
    from virtualgpu.net.inside import pair
    from virtualgpu.net.network import parse
    from virtualgpu.net.topology import Topology

    try:
        sheet = cards.find(card)
        link = parse(network or sheet.network)
    except VirtualGpuError as error:
        raise LabError(str(error)) from error
    nodes = ("node1", "node1") if network is None else ("node1", "node2")
    topology = Topology(nodes, (sheet, sheet), link)
    wire = topology.wire(0, 1)
    title = f"{pair(*topology.seats).name} of a {sheet.name}" if network is None else link.name
    return Curve.of(f"virtual {title}", [(size, message(wire, size)) for size in SIZES])


def all_reduce(card: str, gpus: Sequence[int], size: int) -> float:
    """Return the modeled seconds of an all-reduce on some GPUs of one node.

    Args:
        card: the GPU model.
        gpus: their numbers on the node.
        size: of the tensor, in bytes.
    """
    from virtualgpu.core.cards import find
    from virtualgpu.net.collectives import all_reduce
    from virtualgpu.net.network import parse
    from virtualgpu.net.topology import Topology

    sheet, count = find(card), len(gpus)
    node = Topology(("node1",) * count, (sheet,) * count, parse(sheet.network), tuple(gpus))
    return all_reduce(node.path(range(count)), size)


def plot(*curves: Curve) -> Drawing:
    """Time and bandwidth over the size, and each curve's fit as a thin line."""
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(9.5, 4), layout="constrained")
    times, rates = figure.subplots(1, 2)
    for number, curve in enumerate(curves):
        marker, color = "osD^v*"[number % 6], f"C{number}"  # not by color alone
        fitted = [curve.fit.latency + size / curve.fit.bandwidth for size in curve.sizes]
        bandwidths = _rates(curve.sizes, curve.seconds)
        times.loglog(curve.sizes, curve.seconds, marker=marker, markersize=4, linestyle="",
                     color=color, label=curve.name)
        times.loglog(curve.sizes, fitted, linewidth=1, color=color)
        rates.loglog(curve.sizes, bandwidths, marker=marker, markersize=4, linestyle="",
                     color=color)
        rates.loglog(curve.sizes, _rates(curve.sizes, fitted), linewidth=1, color=color)
    times.set(xlabel="bytes", ylabel="seconds", title="Time of a transfer")
    rates.set(xlabel="bytes", ylabel="bytes per second", title="Bandwidth that it reaches")
    for axes in (times, rates):
        axes.grid(alpha=0.3)
    times.legend(fontsize=8)
    return Drawing(figure, "Time and bandwidth of messages over their size, flat at first and then "
                   "in proportion to it. " + "; ".join(map(str, curves)) + ".")


def _rates(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    return [size / time for size, time in zip(sizes, seconds, strict=True)]
