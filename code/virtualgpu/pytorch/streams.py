"""torch.cuda's streams and events on the virtual clock."""

from __future__ import annotations

import itertools

import torch

from virtualgpu.core.clock import COMPUTE
from virtualgpu.net.work import POLL
from virtualgpu.pytorch.mode import CudaGpu

OVERLAP = "kernels on different streams overlap without slowing each other down"


class Stream:
    """A stream of the virtual GPU; torch.cuda.stream(s) uses it as a context manager."""

    gpu: CudaGpu  # this process's GPU; install sets it
    numbers = itertools.count(1)
    device_type = 1  # CUDA, in C++

    def __init__(self, device: object = None, priority: int = 0, name: str | None = None,
                 **_: object) -> None:
        self.stream_id = self.cuda_stream = 0 if name else next(self.numbers)
        self.name = name or f"stream {self.stream_id}"
        self.priority, self.device = priority, self.gpu.device
        self.device_index = self.gpu.index
        self.before: list[str] = []
        streams[self.name] = self

    def wait_stream(self, other: Stream) -> None:
        clock = self.gpu.clock
        clock.wait(clock.ready(other.name), self.name, other.name)

    def wait_event(self, event: Event) -> None:
        self.gpu.clock.wait(event.time or 0.0, self.name, event.stream)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        clock = self.gpu.clock
        clock.host_waits(clock.ready(self.name), self.name)

    def query(self) -> bool:
        poll(self.gpu)
        return self.gpu.clock.streams[self.name] <= self.gpu.clock.host

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        if self.name != COMPUTE:
            self.gpu.assumptions.note(OVERLAP)
        self.before.append(self.gpu.stream)
        self.gpu.stream = self.name
        return self

    def __exit__(self, *_: object) -> None:
        self.gpu.stream = self.before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """An event: a moment of a stream.

    Attributes:
        timing: whether elapsed_time may be called.
        time: when it was recorded, in virtual seconds; None before.
        stream: name of the stream on which it was recorded.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False,
                 interprocess: bool = False, external: bool = False) -> None:
        self.timing, self.time, self.stream = enable_timing, None, None

    def record(self, stream: Stream | None = None) -> None:
        self.stream = (stream or current()).name
        self.time = Stream.gpu.clock.ready(self.stream)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current()).wait_event(self)

    def synchronize(self) -> None:
        Stream.gpu.clock.host_waits(self.time or 0.0, self.stream)

    def query(self) -> bool:
        poll(Stream.gpu)
        return (self.time or 0.0) <= Stream.gpu.clock.host

    def elapsed_time(self, end: Event) -> float:
        """Return the time from this event to the other, in milliseconds.

        Raises:
            torch.AcceleratorError: the host has not waited for both, as on CUDA.
        """
        if self.time is None or end.time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.timing and end.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if max(self.time, end.time) > Stream.gpu.clock.host:
            raise torch.AcceleratorError(
                "CUDA error: device not ready: the GPU has not reached these events yet; call "
                "end.synchronize() or torch.cuda.synchronize() before elapsed_time()")
        return 1e3 * (end.time - self.time)


def poll(gpu: CudaGpu) -> None:
    """Charge the host for a query of the GPU's progress, so that polling loops terminate."""
    gpu.clock.work(POLL)
    if gpu.journal is not None:
        gpu.journal.note("z", POLL)


streams: dict[str, Stream] = {}


def current(device: object = None) -> Stream:
    name = Stream.gpu.stream
    return streams[name] if name in streams else Stream(name=name)


def default(device: object = None) -> Stream:
    return streams[COMPUTE]


class StreamContext:
    """torch.cuda.stream(s), a context manager; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def choose(stream: Stream | None) -> None:
    """Replace torch.cuda.set_stream."""
    if stream is not None:
        Stream.gpu.stream = stream.name


def install(gpu: CudaGpu) -> None:
    """Replace the streams and events of torch.cuda."""
    Stream.gpu = gpu
    streams.clear()
    Stream(name=COMPUTE)
    cuda = torch.cuda
    for module in (cuda, cuda.streams):
        module.Stream, module.Event = Stream, Event
    cuda.ExternalStream = Stream
    cuda.stream = cuda.StreamContext = StreamContext
    cuda.current_stream, cuda.default_stream, cuda.set_stream = current, default, choose
    accelerator = torch.accelerator
    accelerator.current_stream, accelerator.set_stream = current, choose
    torch.Stream, torch.Event = Stream, Event
