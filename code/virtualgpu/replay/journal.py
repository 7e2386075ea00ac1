"""Record a program's run on a virtual GPU. format.py has the format.

A record contains no times: the moment that the program waits for is recorded as "stream 2, as of
entry 40" or "the end of communication 7". Each time carries this origin from the call that creates
it to the call that waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from virtualgpu.core.clock import COMPUTE, Clock
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.operand import tensors
from virtualgpu.core.plan import OperationPlan, nested
from virtualgpu.core.rules.results import result_rule_of
from virtualgpu.replay.format import COMMUNICATION, FORMAT, HOST, NO_STREAM, VERSION
from virtualgpu.replay.operations import encode_operation, unlisted

if TYPE_CHECKING:
    from virtualgpu.core.gpu import VirtualGpu
    from virtualgpu.net.group import VirtualGroup
    from virtualgpu.net.work import Work

Origin = tuple[int, int]


class Moment(float):
    """A time in seconds, with its origin: a stream and an entry, or a communication."""

    origin: Origin


def moment(time: float, origin: Origin) -> Moment:
    """Return a time with its origin."""
    result = Moment(time)
    result.origin = origin
    return result


class Journal:
    """Records one rank, from its construction on."""

    def __init__(self, gpu: VirtualGpu, rank: int = 0, world: int = 1) -> None:
        """Start recording.

        Args:
            gpu: this rank's virtual GPU.
            rank: this process's rank.
            world: number of ranks in the job.

        Raises:
            VirtualGpuError: the GPU has already been used.
        """
        if gpu.journal is not None or gpu.clock.host or any(gpu.clock.streams.values()):
            raise VirtualGpuError("a record must begin before anything runs on the virtual GPU")
        self.gpu, self.rank, self.world = gpu, rank, world
        self.entries: list[list] = []
        self.streams: dict[str, int] = {COMPUTE: 0}
        self.encoded: dict[str, int] = {}  # indices of operations, by their JSON
        self.indices: dict[tuple, int] = {}  # indices of operations, by their plans' keys
        self.groups: dict[tuple[str, tuple[int, ...]], int] = {}
        self.storages: dict[int, int] = {}  # numbers of live storages, by identity
        self.allocations = self.communications = 0
        self.memory_stream = COMPUTE  # the last allocation's stream
        for key, block in gpu.blocks.items():
            self.allocated(key, block.requested, block.size)
        gpu.clock = RecordingClock(gpu.clock, self)
        gpu.journal = self

    def finish(self) -> str:
        """Stop recording, and return the record."""
        self.gpu.journal = None
        self.gpu.clock.journal = None
        head = {"format": FORMAT, "version": VERSION, "rank": self.rank, "world": self.world,
                "streams": list(self.streams), "groups": [
                    {"name": name, "ranks": list(ranks)} for name, ranks in self.groups]}
        return "".join([json.dumps(head)[:-1], ',\n"operations": [', ",\n".join(self.encoded),
                        '],\n"entries": [', ",\n".join(map(json.dumps, self.entries)), "]}"])

    def note(self, code: str, *fields: object) -> None:
        """Append an entry; format.py explains codes and fields."""
        self.entries.append([code, *fields])

    def stream(self, name: str) -> int:
        """Return the index of a stream."""
        return self.streams.setdefault(name, len(self.streams))

    def kernel(self, key: tuple, func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
               plan: OperationPlan, out: object) -> None:
        """Record an operation that is about to be launched.

        Args:
            key: key of its plan.
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
            out: its result.

        Raises:
            VirtualGpuError: `read` would refuse the record, because it does not know the operation.
        """
        operands = tensors((*args, *kwargs.values()))
        held = tuple(map(self.gpu.holds, operands))
        fresh = list(nested(out)) if plan.results is not None else []
        number = self.indices.get((key, held))
        if number is None:
            if result_rule_of(str(func._overloadpacket)) is None:
                raise VirtualGpuError(unlisted(str(func._overloadpacket)))
            text = encode_operation(func, args, kwargs, operands, held, fresh)
            number = self.indices[key, held] = self.encoded.setdefault(text, len(self.encoded))
        places = []
        for item in (*operands, *fresh):
            places += self._place(item)
        self.note("k", number, self.stream(self.gpu.stream), places)

    def _place(self, tensor: torch.Tensor) -> list[int]:
        """Return the storage's number and the offset of the tensor's first byte."""
        storage = self.storages.get(tensor.untyped_storage()._cdata)
        if storage is None:
            return [HOST, 0]
        return [storage, tensor.storage_offset() * tensor.element_size()]

    def to_host(self, source: torch.Tensor, pinned: bool) -> None:
        """Record that a tensor is about to be copied to the host.

        Args:
            source: the tensor.
            pinned: whether the copy is asynchronous and goes to pinned memory.
        """
        self.note("d", self.stream(self.gpu.stream), *self._place(source), source.nbytes,
                  int(pinned))

    def _from_current_stream(self) -> None:
        """Record a change of the stream that allocations belong to."""
        if self.gpu.stream != self.memory_stream:
            self.memory_stream = self.gpu.stream
            self.note("m", self.stream(self.memory_stream))

    def allocated(self, key: int, size: int, _held: int) -> None:
        self._from_current_stream()
        self.storages[key] = self.allocations
        self.allocations += 1
        self.note("a", size)

    def refused(self, size: int) -> None:
        """Record a request of `size` bytes that did not fit."""
        self._from_current_stream()
        self.note("x", size)

    def released(self, key: int, _held: int) -> None:
        self.note("f", self.storages.pop(key))

    def resized(self, key: int, size: int, _before: int, _held: int) -> None:
        self._from_current_stream()
        self.note("r", self.storages[key], size)

    def _group(self, group: VirtualGroup) -> int:
        return self.groups.setdefault((group.messenger.name or "", tuple(group.ranks)),
                                      len(self.groups))

    def _count(self, work: Work) -> None:
        work.number = self.communications
        self.communications += 1

    def _ranges(self, items: Sequence[torch.Tensor]) -> list[int]:
        return [field for item in items for field in (*self._place(item), item.nbytes)]

    def collective(self, group: VirtualGroup, work: Work, name: str, call: str,
                   given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor],
                   splits: Sequence[Sequence[int]]) -> None:
        """Record that a collective starts.

        Args:
            group: its process group.
            work: the program's handle.
            name: the collective.
            call: the collective, with the arguments that all ranks must agree on.
            given: input tensors.
            taken: output tensors.
            splits: elements for and from each rank, if they may differ.
        """
        self._count(work)
        width = (*given, *taken)[0].element_size() if splits else 0
        self.note("c", self._group(group), name, call, self.stream(self.gpu.stream),
                  self._ranges(given), self._ranges(taken),
                  [[width * count for count in side] for side in splits])

    def sent(self, group: VirtualGroup, work: Work, peer: int, items: Sequence[torch.Tensor]
             ) -> None:
        """Record a send to the rank with this index in the group."""
        self._count(work)
        self.note("p", self._group(group), peer, self.stream(self.gpu.stream), self._ranges(items))

    def received(self, group: VirtualGroup, work: Work, peer: int, items: Sequence[torch.Tensor]
                 ) -> None:
        """Record a receive from the rank with this index in the group."""
        self._count(work)
        self.note("q", self._group(group), peer, self._ranges(items))

    def settled(self, work: Work, end: float) -> float:
        """Record that a communication's end is known; return the end as a Moment."""
        if work.number is None:  # it started before the record
            return end
        self.note("t", work.number)
        return moment(end, (COMMUNICATION, work.number))


class RecordingClock(Clock):
    """A virtual GPU's clock that records every wait."""

    def __init__(self, clock: Clock, journal: Journal) -> None:
        self.__dict__.update(clock.__dict__)
        self.journal: Journal | None = journal

    def ready(self, stream: str = COMPUTE) -> float:
        time, journal = super().ready(stream), self.journal
        if journal is None:
            return time
        return moment(time, (journal.stream(stream), len(journal.entries)))

    def wait(self, until: float, stream: str = COMPUTE, source: str | None = None) -> None:
        self._note("w", until, stream, source)
        super().wait(float(until), stream, source)

    def wait_for_communication(self, until: float, stream: str = COMPUTE) -> None:
        self._note("v", until, stream)
        super().wait_for_communication(float(until), stream)

    def host_waits(self, until: float, source: str | None = None) -> None:
        self._note("h", until, source)
        super().host_waits(float(until), source)

    def synchronize(self) -> float:
        if self.journal is not None:
            self.journal.note("s")
        return super().synchronize()

    def _note(self, code: str, until: float, *streams: str | None) -> None:
        """Record a wait.

        Args:
            code: the entry's code.
            until: when the wait ends.
            streams: streams that the entry names.
        """
        if self.journal is None or (until == 0.0 and not isinstance(until, Moment)):
            return  # an event that was never recorded
        if not isinstance(until, Moment):
            raise VirtualGpuError("a stream waits for a time of unknown origin, which cannot be "
                                  "recorded")
        self.journal.note(code, *until.origin, *(
            NO_STREAM if name is None else self.journal.stream(name) for name in streams))
