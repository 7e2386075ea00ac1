"""A process group whose messages carry times instead of tensors.

Ranks tell each other over gloo when they were ready; each computes from that when the message has
arrived. As with NCCL, a group has a stream of its own on every card: a collective
starts when the slowest rank's compute stream got there and the group's last one is over, and the
compute stream waits for it only when the program does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch.futures import Future

from virtualgpu.core.card import Card
from virtualgpu.core.clock import Span
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.net import collectives, nccl
from virtualgpu.net.topology import Topology

if TYPE_CHECKING:
    from virtualgpu.export.trace import Message

BACKEND = "virtual"
# NCCL's buffers: three protocols' worth for each channel (NCCL_BUFFSIZE 4 MiB and as much again),
# of which it opens many over NVLink and few over slower links.
BUFFER, CHANNELS, FEW_CHANNELS = 10 * 2**20, 16, 2
TAGS = 2**20  # gloo's numbers of messages are 32 bits wide
Say = Callable[[str], None]


def channels_of(card: Card, path: collectives.Path) -> int:
    """How many a communicator opens."""
    return CHANNELS if path.nodes == 1 and card.nvlink else FEW_CHANNELS


def buffer_bytes(card: Card, path: collectives.Path) -> int:
    """Memory of a communicator on each card."""
    return channels_of(card, path) * BUFFER


class Wire:
    """Times between the ranks of one group, over gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.latest_of = dist.AllreduceOptions()
        self.latest_of.reduceOp = dist.ReduceOp.MAX

    def meet(self, time: float) -> Callable[[], float]:
        """Tell the others the time; what is returned waits for theirs, and gives the latest."""
        latest = torch.tensor([time], dtype=torch.float64)
        return self._later(latest, self.gloo.allreduce([latest], self.latest_of))

    def send(self, time: float, target: int, number: int) -> Callable[[], float]:
        told = torch.tensor([time], dtype=torch.float64)
        return self._later(told, self.gloo.send([told], target, number % TAGS))

    def receive(self, source: int, number: int) -> Callable[[], float]:
        """What is returned waits for the time that one rank sent."""
        told = torch.empty(1, dtype=torch.float64)
        return self._later(told, self.gloo.recv([told], source, number % TAGS))

    @staticmethod
    def _later(tensor: torch.Tensor, work: dist.Work) -> Callable[[], float]:
        def wait() -> float:
            work.wait()
            return tensor.item()
        return wait


class Alone:
    """The same for a rank that stands for a whole grid: its peers are where it is."""

    def meet(self, time: float) -> Callable[[], float]:
        return lambda: time

    def send(self, time: float, target: int, number: int) -> Callable[[], float]:
        return lambda: time

    def receive(self, source: int, number: int) -> Callable[[], float]:
        return lambda: 0.0  # it has been there all the time


class Work(dist.Work):
    """Something under way; `wait` makes the compute stream wait for its end."""

    def __init__(self, group: VirtualGroup, result: list[torch.Tensor]) -> None:
        super().__init__()
        self.group, self.end = group, None
        self.note: Message | None = None  # where a trace is made
        self.future: Future = Future()
        self.future.set_result(result)

    def wait(self, timeout: object = None) -> bool:
        self.group.settle(self)
        self.group.gpu.wait_for_collective(self.end)
        return True

    def is_completed(self) -> bool:
        return self.end is not None

    def get_future(self) -> Future:
        return self.future


class Collective(NamedTuple):
    """One that has begun here. latest: waits for the slowest rank, and gives its time."""

    work: Work
    name: str
    seconds: float
    latest: Callable[[], float]


class VirtualGroup(dist.ProcessGroup):
    def __init__(self, gpu: VirtualGpu, topology: Topology, ranks: list[int], rank: int,
                 wire: Wire | Alone, say: Say | None = None) -> None:
        """ranks: of the group, in the job's numbers. rank: this one's index among them. say: takes
        the text that NCCL would print of the communicator."""
        super().__init__(rank, len(ranks))
        self.gpu, self.topology, self.ranks, self.wire = gpu, topology, ranks, wire
        self.path, self.say = topology.path(ranks), say
        self.stream = f"{BACKEND} {','.join(map(str, ranks))}"
        self.under_way: deque[Collective] = deque()  # oldest first
        self.opened = False
        self.over = 0.0  # when the last settled one ended
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.free: dict[int, float] = {}  # when the wire to a peer is

    def _open(self) -> None:
        """Before the first message, as NCCL does, take memory for the buffers."""
        if not self.opened:
            self.opened = True
            self.gpu.take(buffer_bytes(self.gpu.card, self.path))
            if self.say is not None:
                channels = channels_of(self.gpu.card, self.path)
                self.say("\n".join(nccl.lines(self.topology, self.ranks, self.rank(), channels)))

    def _begin(self, name: str, seconds: float, tensors: list[torch.Tensor],
               given: list[torch.Tensor] | None = None) -> Work:
        """A collective: post that this rank is ready. given: what goes in, where it is not
        `tensors`."""
        self._refuse_values(tensors)
        self._open()
        clock = self.gpu.clock
        clock.work(self.gpu.card.efficiency.dispatch)
        work = Work(self, tensors)
        self._note(work, name, self.stream, given or tensors, clock.ready(),
                   name == "all_reduce" and self._by_tree(tensors))
        self.under_way.append(Collective(work, name, seconds, self.wire.meet(clock.ready())))
        return work

    def _by_tree(self, tensors: list[torch.Tensor]) -> bool:
        size = sum(tensor.nbytes for tensor in tensors)
        return collectives.all_reduce(self.path, size) < collectives.ring(self.path, size, 2)

    def _note(self, work: Work, name: str, stream: str, given: list[torch.Tensor], ready: float,
              tree: bool = False) -> None:
        """For the trace, if one is made."""
        if self.gpu.recorder is not None:
            work.note = self.gpu.recorder.message(
                name, stream, self.ranks, work.future.value(), sum(map(torch.numel, given)), ready,
                channels=channels_of(self.gpu.card, self.path), tree=tree)

    def settle(self, work: Work) -> None:
        """Find out when `work` ends, after those that began before it on this group."""
        while work.end is None:
            first = self.under_way.popleft()
            start = max(first.latest(), self.over)
            self._end(first.work, first.name, start, start + first.seconds)
            self.over = first.work.end

    def _end(self, work: Work, name: str, start: float, end: float) -> None:
        work.end = end
        if work.note is not None:
            work.note.end = end
        clock = self.gpu.clock
        clock.wait(end, self.stream)
        self.gpu.busy[name] += end - start
        if clock.watcher is not None:
            clock.watcher.append(Span(name, self.stream, start, end))

    def _refuse_values(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if not tensor.is_meta:
                raise RuntimeError(f"a tensor on {tensor.device} in a group of virtual GPUs, which "
                                   "carry no values: control traffic belongs to the default group")

    def allreduce(self, tensors, opts=None):
        size = sum(tensor.nbytes for tensor in tensors)
        return self._begin("all_reduce", collectives.all_reduce(self.path, size), tensors)

    def all_gather_single(self, output, input, opts=None):
        seconds = collectives.all_gather(self.path, output.nbytes)
        return self._begin("all_gather", seconds, [output], [input])

    def reduce_scatter_single(self, output, input, opts=None):
        seconds = collectives.all_gather(self.path, input.nbytes)
        return self._begin("reduce_scatter", seconds, [output], [input])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def broadcast(self, tensors, opts=None):
        size = sum(tensor.nbytes for tensor in tensors)
        return self._begin("broadcast", collectives.broadcast(self.path, size), tensors)

    def barrier(self, opts=None):
        return self._begin("barrier", collectives.all_reduce(self.path, 4), [])

    def _wire(self, peer: int) -> collectives.Path:
        return self.topology.wire(self.ranks[self.rank()], self.ranks[peer])

    def send(self, tensors, dst, tag=0):
        """It leaves when it is ready and the one before it has left; the receiver need not wait
        for it yet."""
        self._refuse_values(tensors)
        self._open()
        clock, number = self.gpu.clock, self.sent.get(dst, 0)
        clock.work(self.gpu.card.efficiency.dispatch)
        self.sent[dst] = number + 1
        start = max(clock.ready(), self.free.get(dst, 0.0))
        seconds = collectives.message(self._wire(dst), sum(tensor.nbytes for tensor in tensors))
        work = Departure(self, tensors, self.wire.send(start + seconds, dst, number))
        self._note(work, f"send {self.rank()}->{dst}", f"{self.stream} to {dst}", tensors, start)
        self._end(work, "send", start, start + seconds)
        self.free[dst] = work.end
        return work

    def recv(self, tensors, src, tag=0):
        self._refuse_values(tensors)
        self._open()
        number = self.received.get(src, 0)
        self.received[src] = number + 1
        self.gpu.clock.work(self.gpu.card.efficiency.dispatch)
        work = Arrival(self, tensors, self.wire.receive(src, number))
        self._note(work, f"recv {self.rank()}<-{src}", f"{self.stream} from {src}", tensors,
                   self.gpu.clock.ready())
        if work.note is not None:
            work.travel = collectives.message(self._wire(src),
                                              sum(tensor.nbytes for tensor in tensors))
        return work

    def getBackendName(self):
        return BACKEND


class Arrival(Work):
    """A message to come: its sender knows when."""

    def __init__(self, group: VirtualGroup, result: list[torch.Tensor], told: Callable[[], float]
                 ) -> None:
        super().__init__(group, result)
        self.told, self.travel = told, 0.0

    def wait(self, timeout: object = None) -> bool:
        if self.end is None:
            self.end = self.told()
            if self.note is not None:
                # NCCL's kernel would look for the message all the time; so much is its own.
                self.note.ready = max(self.note.ready, self.end - self.travel)
                self.note.end = max(self.note.ready, self.end)
        self.group.gpu.clock.wait(self.end)
        return True


class Departure(Arrival):
    """A message that leaves: this rank knows when, and waits until the other has been told."""

    def wait(self, timeout: object = None) -> bool:
        self.told()
        self.group.gpu.clock.wait(self.end)
        return True


# torch's registry is global and for ever.
_here: dict[str, tuple[VirtualGpu, Topology, Say | None]] = {}


def register(gpu: VirtualGpu, topology: Topology, say: Say | None = None) -> None:
    """Let torch.distributed.new_group(backend="virtual") make groups between these cards.

    say: takes what NCCL would print of each group, when it is first used; None: nobody asks.
    """
    _here[BACKEND] = gpu, topology, say
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=["meta"])


def _make(options, _) -> VirtualGroup:
    gpu, topology, say = _here[BACKEND]
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    wire = Wire(options.store, options.group_rank, len(ranks), options.timeout)
    return VirtualGroup(gpu, topology, ranks, options.group_rank, wire, say)
