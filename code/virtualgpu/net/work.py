"""Handles of collectives and transfers (torch.distributed calls them works), and their futures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.futures import Future

AutogradNode = tuple[str, int] | None  # name and sequence number; None in the forward pass
POLL = 2e-6  # seconds that the host takes to query a CUDA event; assumed


@dataclass
class CommunicationNote:
    """A collective or a transfer between two ranks.

    Attributes:
        name: the collective or transfer.
        stream: the stream that its kernel runs on.
        ranks: ranks of the process group.
        dtype: dtype of the tensors.
        sent: number of elements of the inputs.
        received: number of elements of the outputs.
        tree: whether it uses a tree instead of rings.
        channels: number of the communicator's channels.
        host: when the host launched it, in seconds.
        node: the autograd node that launched it.
        ready: when this rank's kernel can start, in seconds; it then waits for the other ranks.
        end: when it ends, in seconds; None until known.
        reads, writes: identities of the storages that it reads and writes.
    """

    name: str
    stream: str
    ranks: list[int]
    dtype: torch.dtype
    sent: int
    received: int
    tree: bool
    channels: int
    host: float
    node: AutogradNode
    ready: float
    end: float | None = None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


class Work(dist.Work):
    """A collective or a transfer; `wait` makes the current stream wait for its end.

    Attributes:
        group: the VirtualGroup that runs it.
        end: when it ends, in virtual seconds; None until the ranks' messages have been read.
        note: its entry in the trace, or None.
        number: its index in the rank's record, or None.
    """

    def __init__(self, group: dist.ProcessGroup, result: object) -> None:
        super().__init__()
        self.group, self.outputs = group, result
        self.end: float | None = None
        self.note: CommunicationNote | None = None
        self.number: int | None = None

    def settle(self) -> None:
        """Wait for the messages that determine when it ends."""
        self.group.settle(self)

    def wait(self, timeout: object = None) -> bool:
        self.settle()
        gpu = self.group.gpu
        if self.end > 0.0 or self.number is not None:
            gpu.clock.wait_for_communication(self.end, gpu.stream)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Return whether it has ended. A query takes virtual time, so a polling loop terminates."""
        self.settle()
        gpu = self.group.gpu
        gpu.clock.work(POLL)
        if gpu.journal is not None:
            gpu.journal.note("z", POLL)
        return self.end <= gpu.clock.host

    def is_success(self) -> bool:
        return True

    def result(self) -> object:
        return self.outputs

    def get_future(self) -> Future:
        return WorkFuture(self)


class BarrierWork(Work):
    """A barrier, which makes the host wait as well, as with NCCL."""

    def wait(self, timeout: object = None) -> bool:
        super().wait(timeout)
        self.group.gpu.clock.host_waits(self.end)
        return True


class CoalescedWork(dist.Work):
    """The works that one coalesced call started."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self.works = list(works)

    def wait(self, timeout: object = None) -> bool:
        for work in self.works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def get_future(self) -> Future:
        return WorkFuture(self.works[-1])


class WorkFuture(Future):
    """A future that C++ sees as completed, and that takes virtual time when Python waits for it.

    DistributedDataParallel keeps the futures of its buckets and waits for them in C++ after the
    backward pass. So a future that is made during a backward pass makes the current stream wait at
    the end of that pass, just before DDP reads the buckets.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
        with work.group.truth():
            self.set_result(work.outputs)
        at_end_of_backward(self.wait)

    def wait(self) -> object:
        self.work.wait()
        return self.value()

    def then(self, callback: Callable[[Future], object]) -> Future:
        """Run a callback on a stream of its own as soon as the collective has ended."""
        self.work.settle()
        gpu, name = self.work.group.gpu, self.work.group.stream
        callback_stream, before = f"{name} callbacks", gpu.stream
        gpu.clock.wait(self.work.end, callback_stream, name)
        gpu.stream = callback_stream
        try:
            result = callback(self)
        finally:
            gpu.stream = before
        return CallbackFuture(self.work, result, gpu.clock.ready(callback_stream), callback_stream)


class CallbackFuture(WorkFuture):
    """The future of a callback's result."""

    def __init__(self, work: Work, result: object, end: float, stream: str) -> None:
        after = Work(work.group, result)
        after.end, self.stream = end, stream
        super().__init__(after)

    def wait(self) -> object:
        gpu = self.work.group.gpu
        gpu.clock.wait(self.work.end, gpu.stream, self.stream)
        return self.value()


def at_end_of_backward(call: Callable[[], object]) -> None:
    """Call a function at the end of the current backward pass, if there is one."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(call)
