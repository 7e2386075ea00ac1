"""Record what a virtual GPU does, for a trace in the profiler's format.

Events are raw and small, and chrome_trace.py completes them. They hold neither tensors nor autograd
nodes, which would keep memory alive that the program has released.
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
from virtualgpu.core.plan import Plan

if TYPE_CHECKING:
    from virtualgpu.core.gpu import VirtualGpu

Node = tuple[str, int] | None  # of autograd: name and sequence number; None in the forward pass


class Operation(NamedTuple):
    """key: the operation and plan.signature of its arguments. host: when all was launched;
    end: when its kernels are done (seconds). sequence: of the autograd node made last. stream:
    where they run. reads, writes: identities of the storages that go in and come out."""

    key: tuple
    plan: Plan
    host: float
    end: float
    node: Node
    sequence: int
    stream: str = COMPUTE
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


class Bytes(NamedTuple):
    """Memory allocated (size > 0) or given back, and what is in use after it. ready: when the card
    gets there: the host is ahead of it."""

    address: int
    size: int
    live: int
    reserved: int
    host: float
    ready: float
    node: Node


class Wait(NamedTuple):
    """The host waited for the card."""

    start: float
    end: float
    node: Node


class Edge(NamedTuple):
    """A range (or a module's forward pass) of the program begins or ends. what: "range", "step"
    or "module"."""

    what: str
    name: str
    begins: bool
    host: float


@dataclass
class Message:
    """A collective or a message between two ranks, as NCCL's kernel for it.

    ready: when this rank's kernel can start: it waits there for the others. end: None until known.
    """

    name: str
    stream: str
    ranks: list[int]
    dtype: torch.dtype
    sent: int  # elements in
    received: int  # elements out
    tree: bool
    channels: int
    host: float
    node: Node
    ready: float
    end: float | None = None
    reads: tuple[int, ...] = ()  # storages
    writes: tuple[int, ...] = ()


Note = Operation | Bytes | Wait | Edge | Message


class Recorder:
    """Takes the notes of one card."""

    def __init__(self, gpu: VirtualGpu, most: float = math.inf,
                 stopped: Callable[[], None] = lambda: None) -> None:
        """Args:
            gpu: the virtual GPU.
            most: notes until it stops by itself.
            stopped: called when it stops, whoever stops it.
        """
        self.gpu, self.notes, self.most, self.stopped = gpu, [], most, stopped
        self._hooks: list = []
        # Not to keep alive what the program drops.
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
        """Whether recording stopped by itself because the record is full."""
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

    def operation(self, key: tuple, plan: Plan, given: object, out: object) -> None:
        """Note an operation that has just been launched.

        Args:
            key: the operation and what decides its cost.
            plan: what it does.
            given: its arguments, nested in any way.
            out: its results.
        """
        clock, stream = self.gpu.clock, self.gpu.stream
        self._add(Operation(
            key, plan, clock.host, clock.streams[stream], node(),
            torch._C._autograd._get_sequence_nr() - 1, stream, keys(given), keys(out)))

    def allocated(self, key: int, _size: int, held: int) -> None:
        self._memory(key, held)

    def released(self, key: int, held: int) -> None:
        self._memory(key, -held)

    def resized(self, key: int, _size: int, before: int, held: int) -> None:
        self._memory(key, held - before)

    def _memory(self, address: int, size: int) -> None:
        memory, clock = self.gpu.memory, self.gpu.clock
        self._add(Bytes(address, size, memory.live, memory.reserved, clock.host, clock.ready(),
                        node()))

    def waited(self, since: float) -> None:
        """The host has waited from then until now."""
        if self.gpu.clock.host > since:
            self._add(Wait(since, self.gpu.clock.host, node()))

    def message(self, name: str, stream: str, ranks: list[int], tensors: list[torch.Tensor],
                sent: int, ready: float, *, channels: int, tree: bool = False,
                given: Sequence[torch.Tensor] = ()) -> Message:
        """Note a collective or a transfer that has just been launched; who knows its end sets it.

        Args:
            name: of the collective.
            stream: on which it runs.
            ranks: of its process group.
            tensors: what comes out.
            sent: elements that go in.
            ready: when this rank can start.
            channels: of the communicator.
            tree: whether it is a tree instead of a ring.
            given: what goes in.
        """
        dtype = tensors[0].dtype if tensors else torch.float32
        note = Message(name, stream, ranks, dtype, sent, sum(map(torch.numel, tensors)), tree,
                       channels, self.gpu.clock.host, node(), ready, None, keys(given),
                       keys(tensors))
        self._add(note)
        return note

    def edge(self, what: str, name: str, begins: bool) -> None:
        self._add(Edge(what, name, begins, self.gpu.clock.host))

    def _module(self, one: torch.nn.Module, begins: bool) -> None:
        name = self._names.get(one)
        if name is None:  # as torch's profiler counts them: the class and a number
            kind = type(one).__name__
            number = self._classes[kind] = self._classes.get(kind, -1) + 1
            name = self._names[one] = f"{kind}_{number}"
        self.edge("module", name, begins)


def keys(value: object) -> tuple[int, ...]:
    """Identities of the storages of all tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        return (value.untyped_storage()._cdata,)
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(dict.fromkeys(key for item in value for key in keys(item)))


def node() -> Node:
    """Return the node that the autograd engine currently evaluates."""
    found = torch._C._current_autograd_node()
    return None if found is None else (found.name(), found._sequence_nr())


@dataclass(frozen=True)
class Place:
    """rank: of world ranks. index: the card's number on its node, of so many there."""

    rank: int
    world: int
    index: int
    cards: int


@contextmanager
def marked(gpu: VirtualGpu, name: str) -> Iterator[None]:
    """A range of the program, in the trace if one is being recorded."""
    recorder = gpu.recorder
    if recorder is not None:
        recorder.edge("range", name, True)
    yield
    if recorder is not None and gpu.recorder is recorder:
        recorder.edge("range", name, False)
