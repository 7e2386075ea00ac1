"""Virtual time: the host that launches kernels, and the streams that run them in order.

The host runs ahead of the card. A kernel starts when the host has launched it and its stream is
free; small kernels end before the next launch, and then the host sets the pace, as on real cards.
All times are in seconds since the start and change by additions and maxima alone, so they are the
same on every machine.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

COMPUTE = "compute"


class Span(NamedTuple):
    """What ran on a stream, when (seconds)."""

    name: str
    stream: str
    start: float
    end: float


class Clock:
    def __init__(self) -> None:
        self.host = 0.0
        self.streams: defaultdict[str, float] = defaultdict(float)
        self.watcher: list[Span] | None = None  # while a list: every kernel is noted in it

    def work(self, seconds: float) -> None:
        """The host is busy."""
        self.host += seconds

    def run(self, name: str, seconds: float, stream: str = COMPUTE) -> None:
        """A kernel that has been launched now."""
        start = max(self.host, self.streams[stream])
        self.streams[stream] = start + seconds
        if self.watcher is not None:
            self.watcher.append(Span(name, stream, start, start + seconds))

    def ready(self, stream: str = COMPUTE) -> float:
        """When all that was launched on the stream so far is done."""
        return max(self.host, self.streams[stream])

    def wait(self, until: float, stream: str = COMPUTE) -> None:
        """What is launched on the stream from now on starts no earlier."""
        self.streams[stream] = max(self.streams[stream], until)

    def synchronize(self) -> float:
        """The host waits for every stream; returns the time."""
        self.host = max(self.host, *self.streams.values(), 0.0)
        return self.host
