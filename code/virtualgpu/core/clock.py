"""Virtual time: the host that launches kernels, and the streams that run them in order.

The host runs ahead of the GPU. A kernel starts when the host has launched it and its stream is
free. Small kernels end before the next launch, so programs that launch many of them are
launch-bound, as on real GPUs. All times are in seconds since the start and are computed by
additions and maxima alone, so they are the same on every machine.

Exposed communication is the time in which a stream is idle because it waits for communication. It
begins when everything launched on the stream so far is done and the host has reached the wait, and
lasts until the communication ends. A stream can wait indirectly: FSDP's compute stream
waits for an event on the stream that copies gathered parameters out, which in turn waited for the
all-gather. Only the part of such a wait counts in which the other stream itself waited for
communication; the copy does not count. A stream that is busy, or that waits for a kernel on another
stream or for the host, exposes no communication. While the host waits for a stream, the compute
stream is idle, too, so the same rule applies to it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

COMPUTE = "compute"


class StreamSpan(NamedTuple):
    """A kernel or a communication that ran on a stream.

    Attributes:
        name: the operation.
        stream: the stream's name.
        start: when it began, in virtual seconds.
        end: when it ended.
    """

    name: str
    stream: str
    start: float
    end: float


Interval = tuple[float, float]
MAX_WAITS = 256  # remembered per stream; earlier ones ended long ago


class Clock:
    """The host's time, and the time when each stream has finished what was launched on it.

    Attributes:
        host: when the host launches its next kernel.
        streams: by stream, when everything launched on it so far is done.
        exposed: by stream, seconds of exposed communication.
        watcher: a list to which every kernel is appended, or None.
    """

    def __init__(self) -> None:
        self.host = 0.0
        self.streams: defaultdict[str, float] = defaultdict(float)
        self.exposed: defaultdict[str, float] = defaultdict(float)
        self.watcher: list[StreamSpan] | None = None
        self._waits: defaultdict[str, deque[Interval]] = defaultdict(
            lambda: deque(maxlen=MAX_WAITS))  # for communication, in order

    def work(self, seconds: float) -> None:
        """Keep the host busy for this many seconds."""
        self.host += seconds

    def run(self, name: str, seconds: float, stream: str = COMPUTE) -> None:
        """Run a kernel that the host launches now.

        Args:
            name: the operation.
            seconds: duration of the kernel.
            stream: the stream that it was launched on.
        """
        start = max(self.host, self.streams[stream])
        self.streams[stream] = start + seconds
        if self.watcher is not None:
            self.watcher.append(StreamSpan(name, stream, start, start + seconds))

    def ready(self, stream: str = COMPUTE) -> float:
        """Return the time when everything launched on a stream so far is done."""
        return self.reached(stream)

    def reached(self, stream: str = COMPUTE) -> float:
        """Return the same for a trace, which must not change when deferred kernels are launched."""
        return max(self.host, self.streams[stream])

    def communicate(self, name: str, stream: str, start: float, end: float) -> None:
        """Run a collective or a transfer on its own stream.

        Args:
            name: the collective or transfer.
            stream: the process group's stream.
            start: when the slowest rank is ready.
            end: when it ends.
        """
        self.streams[stream] = max(self.streams[stream], end)
        self._waits[stream].append((start, end))
        if self.watcher is not None:
            self.watcher.append(StreamSpan(name, stream, start, end))

    def wait(self, until: float, stream: str = COMPUTE, source: str | None = None) -> None:
        """Make a stream wait for an event: kernels launched from now on start after it.

        Args:
            until: when the event occurs.
            stream: the stream that waits.
            source: the stream on which the event was recorded; it tells whether this is a wait for
                communication.
        """
        if source is not None:
            self._expose(stream, until, self._waits[source])
        self.streams[stream] = max(self.streams[stream], until)

    def wait_for_communication(self, until: float, stream: str = COMPUTE) -> None:
        """Make a stream wait for the end of a collective or a transfer."""
        self._expose(stream, until, ((self.ready(stream), until),))
        self.streams[stream] = max(self.streams[stream], until)

    def host_waits(self, until: float, source: str | None = None) -> None:
        """Make the host wait for an event.

        Args:
            until: when the event occurs.
            source: the stream on which it was recorded.
        """
        if source is not None and source != COMPUTE:
            self._expose(COMPUTE, until, self._waits[source])
        self.host = max(self.host, until)

    def synchronize(self) -> float:
        """Make the host wait for every stream, and return the time."""
        last = max(self.host, *self.streams.values(), 0.0)
        if last > self.ready():
            self._expose(COMPUTE, last, [wait for stream, waits in self._waits.items()
                                         if stream != COMPUTE for wait in waits])
        self.host = last
        return self.host

    def _expose(self, stream: str, until: float, waits: Iterable[Interval]) -> None:
        """Record the part of a stream's wait that is exposed communication.

        Args:
            stream: the stream that waits.
            until: when its wait ends.
            waits: the intervals in which there was communication.
        """
        now = self.ready(stream)
        for start, end in sorted(wait for wait in waits if wait[1] > now):
            start, end = max(start, now), min(end, until)
            if end > start:
                self._waits[stream].append((start, end))
                self.exposed[stream] += end - start
                now = end
