"""Record the activity of a virtual GPU for a trace in the profiler's format.

Notes are raw and small; trace_events.py turns them into events. They hold neither tensors nor
autograd nodes, which would keep memory alive that the program has released.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.modules import module

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.plan import OperationPlan
from virtualgpu.net.work import AutogradNode, CommunicationNote

if TYPE_CHECKING:
    from virtualgpu.core.gpu import VirtualGpu



class OperationNote(NamedTuple):
    """An operation.

    Attributes:
        key: the operation and plan.signature of its arguments.
        plan: its plan.
        host: when the host had launched its kernels, in seconds.
        end: when its kernels end, in seconds.
        node: the autograd node that runs it.
        sequence: sequence number of the latest autograd node.
        stream: the stream that it runs on.
        reads, writes: identities of the storages that it reads and writes.
    """

    key: tuple
    plan: OperationPlan
    host: float
    end: float
    node: AutogradNode
    sequence: int
    stream: str = COMPUTE
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


class MemoryNote(NamedTuple):
    """An allocation (size > 0) or a release (size < 0).

    Attributes:
        address: identity of the storage.
        size: bytes allocated or released.
        live: bytes allocated afterwards.
        reserved: bytes reserved afterwards.
        host: when the host requests it, in seconds.
        ready: when the GPU reaches it, in seconds; the host runs ahead.
        node: the autograd node that requests it.
    """

    address: int
    size: int
    live: int
    reserved: int
    host: float
    ready: float
    node: AutogradNode


class WaitNote(NamedTuple):
    """A wait of the host for the GPU, from `start` to `end`, in seconds."""

    start: float
    end: float
    node: AutogradNode


class RangeNote(NamedTuple):
    """The beginning or end of a range of the program.

    Attributes:
        kind: "range", "step", or "module" (a module's forward pass).
        name: name of the range.
        begins: whether it begins.
        host: the host's time, in seconds.
    """

    kind: str
    name: str
    begins: bool
    host: float


Note = OperationNote | MemoryNote | WaitNote | RangeNote | CommunicationNote


class TraceRecorder:
    """Records the notes of one virtual GPU."""

    def __init__(self, gpu: VirtualGpu, most: float = math.inf,
                 stopped: Callable[[], None] = lambda: None) -> None:
        """Create a recorder, which records from `start` on.

        Args:
            gpu: the virtual GPU.
            most: number of notes after which it stops by itself.
            stopped: called whenever it stops.
        """
        self.gpu, self.notes, self.most, self.stopped = gpu, [], most, stopped
        self._hooks: list = []
        # Weak, so that modules that the program drops can be freed.
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._classes: dict[str, int] = {}

    def start(self) -> None:
        self._hooks = [module.register_module_forward_pre_hook(
                           lambda one, _: self._module(one, True)),
                       module.register_module_forward_hook(
                           lambda one, *_: self._module(one, False))]
        self.gpu.recorder = self

    @property
    def full(self) -> bool:
        """True if recording stopped by itself because it has as many notes as it may."""
        return len(self.notes) >= self.most

    def stop(self) -> None:
        if self.gpu.recorder is self:
            self.gpu.recorder = None
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        if hooks:
            self.stopped()

    def _add(self, note: Note) -> None:
        if not self.full:
            self.notes.append(note)
        if self.full:
            self.stop()

    def operation(self, key: tuple, plan: OperationPlan, given: object, out: object) -> None:
        """Record an operation that has just been launched.

        Args:
            key: the operation and the signatures of its arguments.
            plan: its plan.
            given: its arguments, nested in any way.
            out: its results.
        """
        self.kernel(key, plan, position(), keys(given), keys(out))

    def kernel(self, key: tuple, plan: OperationPlan, by: Position, reads: tuple[int, ...],
               writes: tuple[int, ...]) -> None:
        """Record kernels that have just been launched.

        Args:
            key: the operation and the signatures of its arguments.
            by: what launched them.
            reads: identities of the storages that they read.
            writes: identities of those that they write.
        """
        clock, stream = self.gpu.clock, self.gpu.stream
        self._add(OperationNote(key, plan, clock.host, clock.streams[stream], *by, stream, reads,
                                writes))

    def allocated(self, key: int, _size: int, held: int) -> None:
        self._memory(key, held)

    def released(self, key: int, held: int) -> None:
        self._memory(key, -held)

    def resized(self, key: int, _size: int, before: int, held: int) -> None:
        self._memory(key, held - before)

    def _memory(self, address: int, size: int) -> None:
        memory, clock = self.gpu.memory, self.gpu.clock
        self._add(MemoryNote(address, size, memory.live, memory.reserved, clock.host,
                             clock.reached(), node()))

    def waited(self, since: float) -> None:
        """Record that the host has waited from `since` until now."""
        if self.gpu.clock.host > since:
            self._add(WaitNote(since, self.gpu.clock.host, node()))

    def message(self, name: str, stream: str, ranks: list[int], tensors: list[torch.Tensor],
                sent: int, ready: float, *, channels: int, tree: bool = False,
                given: Sequence[torch.Tensor] = ()) -> CommunicationNote:
        """Record a collective or a transfer that was just launched. The caller sets its `end`.

        Args:
            name: the collective.
            stream: the stream that it runs on.
            ranks: ranks of its process group.
            tensors: its outputs.
            sent: number of elements of its inputs.
            ready: when this rank can start, in seconds.
            channels: number of the communicator's channels.
            tree: whether it uses a tree instead of rings.
            given: its inputs.
        """
        dtype = tensors[0].dtype if tensors else torch.float32
        note = CommunicationNote(name, stream, ranks, dtype, sent, sum(map(torch.numel, tensors)),
                                 tree,
                       channels, self.gpu.clock.host, node(), ready, None, keys(given),
                       keys(tensors))
        self._add(note)
        return note

    def edge(self, kind: str, name: str, begins: bool) -> None:
        """Record the beginning or end of a range; see RangeNote."""
        self._add(RangeNote(kind, name, begins, self.gpu.clock.host))

    def _module(self, one: torch.nn.Module, begins: bool) -> None:
        name = self._names.get(one)
        if name is None:  # as torch's profiler names modules: the class and a number
            kind = type(one).__name__
            number = self._classes[kind] = self._classes.get(kind, -1) + 1
            name = self._names[one] = f"{kind}_{number}"
        self.edge("module", name, begins)


def keys(value: object) -> tuple[int, ...]:
    """Return the identities of the storages of all tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        return (value.untyped_storage()._cdata,)
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(dict.fromkeys(key for item in value for key in keys(item)))


Position = tuple[AutogradNode, int]  # the autograd node, and the latest one's sequence number


def position() -> Position:
    return node(), torch._C._autograd._get_sequence_nr() - 1


def node() -> AutogradNode:
    """Return the node that the autograd engine currently evaluates."""
    current = torch._C._current_autograd_node()
    return None if current is None else (current.name(), current._sequence_nr())


@dataclass(frozen=True)
class RankPlacement:
    """A rank and its GPU.

    Attributes:
        rank: the rank in the job.
        world: number of ranks.
        index: number of the GPU on its node.
        cards: number of GPUs on the node.
    """

    rank: int
    world: int
    index: int
    cards: int


@contextmanager
def marked(gpu: VirtualGpu, name: str) -> Iterator[None]:
    """Record the block as a range of the program, if a trace is being recorded."""
    recorder = gpu.recorder
    if recorder is not None:
        recorder.edge("range", name, True)
    yield
    if recorder is not None and gpu.recorder is recorder:
        recorder.edge("range", name, False)
