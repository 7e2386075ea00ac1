"""What a collective returns: something to wait for, and a future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.futures import Future

if TYPE_CHECKING:
    from virtualgpu.export.trace import Message as Note
    from virtualgpu.net.group import VirtualGroup
POLL = 2e-6  # seconds of the host to query a CUDA event; assumed


class Work(dist.Work):
    """A collective or a transfer under way; `wait` makes the current stream wait for its end.

    Attributes:
        end: when it is over, in virtual seconds; None until the ranks have told each other.
        note: of the trace, where one is made.
        number: in the rank's record, where one is made.
    """

    def __init__(self, group: VirtualGroup, result: object) -> None:
        super().__init__()
        self.group, self.outputs = group, result
        self.end: float | None = None
        self.note: Note | None = None
        self.number: int | None = None

    def settle(self) -> None:
        """Find out when it ends."""
        self.group.settle(self)

    def wait(self, timeout: object = None) -> bool:
        self.settle()
        gpu = self.group.gpu
        if self.end > 0.0 or self.number is not None:
            gpu.clock.wait_for_communication(self.end, gpu.stream)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        """Whether the host finds it complete. Looking costs the host time, so polling ends."""
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
    """A barrier: NCCL's makes the host wait as well."""

    def wait(self, timeout: object = None) -> bool:
        super().wait(timeout)
        self.group.gpu.clock.host_waits(self.end)
        return True


class Batch(dist.Work):
    """Several works that one call started."""

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
    """A future that is complete for C++, and costs virtual time where it is waited for.

    DistributedDataParallel keeps the futures of its buckets and waits for them in C++ after the
    backward pass. A future that is made during a backward pass therefore makes the current stream
    wait at the end of that pass, just before DDP reads the buckets.
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
        """Run a callback on a stream of its own, as soon as the collective is over."""
        self.work.settle()
        gpu, name = self.work.group.gpu, self.work.group.stream
        side, before = f"{name} callbacks", gpu.stream
        gpu.clock.wait(self.work.end, side, name)
        gpu.stream = side
        try:
            result = callback(self)
        finally:
            gpu.stream = before
        return Chained(self.work, result, gpu.clock.ready(side), side)


class Chained(WorkFuture):
    """What a callback returned."""

    def __init__(self, work: Work, result: object, end: float, side: str) -> None:
        after = Work(work.group, result)
        after.end, self.side = end, side
        super().__init__(after)

    def wait(self) -> object:
        gpu = self.work.group.gpu
        gpu.clock.wait(self.work.end, gpu.stream, self.side)
        return self.value()


def at_end_of_backward(call: Callable[[], object]) -> None:
    """Call when the backward pass is over that is under way, if there is one."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(call)
