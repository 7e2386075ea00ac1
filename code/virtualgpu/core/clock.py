"""Virtual time: the host that launches kernels, and the streams that run them in order.

The host runs ahead of the card. A kernel starts when the host has launched it and its stream is
free; small kernels end before the next launch, and then the host sets the pace, as on real cards.
All times are in seconds since the start and change by additions and maxima alone, so they are the
same on every machine.

Exposed communication is the time in which a stream has nothing to run because it waits for
communication: from the moment when everything launched on it so far is done, and the host has come
to the wait, until the communication ends. A stream can wait indirectly: FSDP's compute stream waits
for an event on the stream that copies gathered parameters out, which in turn waited for the
all-gather. Of such a wait, the part counts in which the other stream itself waited for
communication; the copy does not count. A stream that has work to do, or waits for a kernel on
another stream or for the host, exposes nothing. When the host waits for a stream, the compute
stream gets nothing to run either, and the same rule applies to it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

COMPUTE = "compute"


class Span(NamedTuple):
    """What ran on a stream, when (seconds)."""

    name: str
    stream: str
    start: float
    end: float


Interval = tuple[float, float]
REMEMBERED = 256  # waits per stream; events that lie further back are long over


class Clock:
    """The host's time, and when each stream is done with what was launched on it.

    Attributes:
        host: when the host launches its next kernel.
        streams: by name, when everything launched so far is done.
        exposed: by stream, seconds of exposed communication.
        watcher: while a list, every kernel is noted in it.
    """

    def __init__(self) -> None:
        self.host = 0.0
        self.streams: defaultdict[str, float] = defaultdict(float)
        self.exposed: defaultdict[str, float] = defaultdict(float)
        self.watcher: list[Span] | None = None
        self._waits: defaultdict[str, deque[Interval]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED))  # for communication, in order

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

    def communicate(self, name: str, stream: str, start: float, end: float) -> None:
        """Run a collective or a transfer on its own stream.

        Args:
            name: what it is.
            stream: the process group's stream.
            start: when the slowest rank is ready.
            end: when it is over.
        """
        self.streams[stream] = max(self.streams[stream], end)
        self._waits[stream].append((start, end))
        if self.watcher is not None:
            self.watcher.append(Span(name, stream, start, end))

    def wait(self, until: float, stream: str = COMPUTE, source: str | None = None) -> None:
        """Let what is launched on a stream from now on start no earlier than an event.

        Args:
            until: when the event occurs.
            stream: the stream that waits.
            source: the stream on which the event was recorded, to find out whether this is a wait
                for communication.
        """
        if source is not None:
            self._expose(stream, until, self._waits[source])
        self.streams[stream] = max(self.streams[stream], until)

    def wait_for_communication(self, until: float, stream: str = COMPUTE) -> None:
        """Let a stream wait for the end of a collective or a transfer."""
        self._expose(stream, until, ((self.ready(stream), until),))
        self.streams[stream] = max(self.streams[stream], until)

    def host_waits(self, until: float, source: str | None = None) -> None:
        """The host waits for an event.

        Args:
            until: when the event occurs.
            source: the stream on which it was recorded.
        """
        if source is not None and source != COMPUTE:
            self._expose(COMPUTE, until, self._waits[source])
        self.host = max(self.host, until)

    def synchronize(self) -> float:
        """The host waits for every stream; returns the time."""
        last = max(self.host, *self.streams.values(), 0.0)
        if last > self.ready():
            self._expose(COMPUTE, last, [wait for stream, waits in self._waits.items()
                                         if stream != COMPUTE for wait in waits])
        self.host = last
        return self.host

    def _expose(self, stream: str, until: float, waits: Iterable[Interval]) -> None:
        """Note which part of a stream's wait is communication.

        Args:
            stream: the stream that waits.
            until: when its wait ends.
            waits: when there was communication.
        """
        at = self.ready(stream)
        for start, end in sorted(wait for wait in waits if wait[1] > at):
            start, end = max(start, at), min(end, until)
            if end > start:
                self._waits[stream].append((start, end))
                self.exposed[stream] += end - start
                at = end
