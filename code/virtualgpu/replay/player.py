"""Replay one rank's record on a new virtual GPU, as far as the other ranks' progress allows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import ClassVar

import torch

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.rules import rule_of
from virtualgpu.net.topology import Topology
from virtualgpu.net.work import POLL
from virtualgpu.replay.buffers import Buffers
from virtualgpu.replay.communication import Communication
from virtualgpu.replay.exchange import Exchange
from virtualgpu.replay.format import COMMUNICATION, HOST, NO_STREAM, BadRecord
from virtualgpu.replay.operations import Operation, span
from virtualgpu.replay.reading import Record


class Player:
    """Replays one rank.

    Attributes:
        gpu: the virtual GPU, with its clock and memory.
        index: index of the next entry.
        flops: FLOPs of its kernels so far, by dtype.
        bytes: bytes that its kernels moved so far.
        communicated: bytes communicated so far, by the number of ranks in the process group.
        downloaded: bytes copied to the host so far, by its memory: "pinned" if that is pinned and
            the copy is asynchronous, else "pageable".
        slept: seconds that the program has slept; polling is not sleep.
        reads: how many times the host has waited to read a value from the GPU.
        known: by stream, the communications that end before its next kernel starts, because it
            waited for them; of the host (NO_STREAM), those that end before what it launches next.
            Bit `n` of each number stands for communication `n`.
        streams: seconds in kernels, by stream.
    """

    def __init__(self, record: Record, topology: Topology, exchange: Exchange) -> None:
        self.record = record
        self.gpu = VirtualGpu(topology.cards[record.rank])
        self.buffers = Buffers(self.gpu)
        self.communication = Communication(record, topology, exchange, self.gpu, self.buffers)
        self.flops: Counter[str] = Counter()
        self.bytes, self.slept, self.reads = 0, 0.0, 0
        self.communicated: Counter[str] = Counter()
        self.downloaded: Counter[str] = Counter()
        self.known: defaultdict[int, int] = defaultdict(int)
        self.known_at: dict[tuple[int, int], int] = {}  # as `moments`
        self.streams: defaultdict[str, float] = defaultdict(float)
        self.costs: dict[int, tuple] = {}  # by operation
        self.index = self.allocations = 0
        self.missed: int | None = None  # `unawaited` when the program ends
        self.memory_stream = COMPUTE
        self.moments: dict[tuple[int, int], float] = {}
        self.awaited: defaultdict[int, set[int]] = defaultdict(set)  # streams by entry
        for code, *fields in record.entries:
            if code in "wvh" and fields[0] != COMMUNICATION:
                self.awaited[fields[1]].add(fields[0])

    @property
    def where(self) -> str:
        return f"rank {self.record.rank}, entry {self.index}"

    @property
    def done(self) -> bool:
        return self.index == len(self.record.entries)

    def advance(self) -> bool:
        """Replay entries until one needs a rank that has not come that far.

        Returns:
            Whether any entry was replayed.

        Raises:
            BadRecord: an entry cannot follow those before it.
        """
        start = self.index
        while not self.done:
            code, *fields = self.record.entries[self.index]
            for stream in self.awaited.get(self.index, ()):
                self.moments[stream, self.index] = self.gpu.clock.ready(self.name(stream))
                self.known_at[stream, self.index] = self._known(stream)
            try:
                if self.HANDLERS[code](self, *fields) is False:
                    break
            except (NoValue, torch.OutOfMemoryError) as error:
                raise BadRecord(f"{self.where}: {error}") from None
            self.index += 1
        return self.index > start

    def name(self, stream: int) -> str | None:
        return None if stream == NO_STREAM else self.record.streams[stream]

    def kernel(self, number: int, stream: int, places: list[int]) -> None:
        operation = self.record.operations[number]
        if number not in self.costs:
            self.costs[number] = self._cost(operation)
        seconds, work, extents = self.costs[number]
        if len(places) != 2 * len(extents):
            raise BadRecord(f"{self.where}: {operation.func} has {len(extents)} tensors, but "
                            f"{len(places) // 2} places")
        name = str(operation.func._overloadpacket)
        at = self._start(stream, work.kernels)
        self.gpu.launch(name, seconds, work.kernels)
        self.streams[self.gpu.stream] += seconds
        for (size, writes, on_host), storage, offset in zip(
                extents, places[::2], places[1::2], strict=True):
            if (storage == HOST) != on_host:
                raise BadRecord(f"{self.where}: a tensor of {operation.func} is both in the "
                                "host's memory and on the GPU")
            self.buffers.use(storage, offset, size, writes, at, self.where)
        if work.gemm is not None:
            self.flops[work.gemm.dtype] += work.gemm.flops
        elif work.flops:
            self.flops[work.dtype] += work.flops
        self.bytes += work.bytes
        if rule_of(operation.func) is None:
            self.gpu.unknown[name] += 1

    def _cost(self, operation: Operation) -> tuple:
        """Return the cost of an operation.

        Returns:
            Seconds, work, and for each tensor (extent in bytes, is written, is in host memory).
        """
        try:
            seconds, work = self.gpu.cost(operation.func, operation.args, operation.produced,
                                          operation.crossing)
        except NoValue:
            raise
        except Exception as error:  # rules may raise anything for arguments that no rule checks
            raise BadRecord(f"{self.where}: {operation.func} with these arguments has no cost: "
                            f"{error}") from error
        flags = [*zip(operation.operands, operation.written, operation.on_host, strict=True),
                 *((item, True, False) for item in operation.fresh)]
        return seconds, work, [
            (span(item.shape, item.stride()) * item.element_size(), writes, on_host)
            for item, writes, on_host in flags]

    def _start(self, stream: int, kernels: int) -> float:
        """Select a stream; return when kernels launched on it now will start, in seconds."""
        clock, self.gpu.stream = self.gpu.clock, self.name(stream)
        return max(clock.host + kernels * self.gpu.card.efficiency.dispatch,
                   clock.streams[self.gpu.stream])

    def download(self, stream: int, storage: int, offset: int, size: int, pinned: int) -> None:
        self.downloaded["pinned" if pinned else "pageable"] += size
        at = self._start(stream, 1)
        self.gpu.download(size)
        # An expanded tensor is larger than its storage.
        held = self.gpu.blocks[storage].requested if storage in self.gpu.blocks else 0
        self.buffers.use(storage, offset, min(size, held - offset), False, at, self.where)

    def use_memory_of(self, stream: int) -> None:
        self.memory_stream = self.record.streams[stream]

    def allocate(self, size: int) -> None:
        self.gpu.stream = self.memory_stream
        self.gpu.blocks[self.allocations] = self.gpu.allocate(size)
        self.allocations += 1

    def refuse(self, size: int) -> None:
        self.gpu.stream = self.memory_stream
        try:
            self.gpu.allocate(size)
        except torch.OutOfMemoryError:
            return
        raise BadRecord(
            f"{self.where}: an allocation of {size} bytes failed, but this GPU has room for it")

    def free(self, storage: int) -> None:
        self.buffers.check(storage, 0, 0, self.where)
        self.gpu.release(storage)

    def resize(self, storage: int, size: int) -> None:
        self.buffers.check(storage, 0, 0, self.where)
        self.gpu.stream = self.memory_stream
        self.gpu.resize(storage, size)
        self.buffers.resized(storage)

    def empty_cache(self) -> None:
        self.gpu.empty_cache()

    def _moment(self, stream: int, index: int) -> float:
        if stream == COMMUNICATION:
            return self.communication.end(self.where, index)
        if index > self.index:
            raise BadRecord(f"{self.where}: waits for entry {index}, which comes later")
        return self.moments[stream, index]

    def _known(self, stream: int) -> int:
        return self.known[stream] | self.known[NO_STREAM]

    def _learns(self, waiter: int, origin: int, index: int) -> None:
        """Note that a stream, or the host, waits for a moment and all that is known to precede it.
        """
        self.known[waiter] |= (1 << index if origin == COMMUNICATION
                               else self.known_at[origin, index])

    def wait(self, origin: int, index: int, stream: int, source: int) -> None:
        self.gpu.clock.wait(self._moment(origin, index), self.name(stream), self.name(source))
        self._learns(stream, origin, index)

    def wait_for_communication(self, origin: int, index: int, stream: int) -> None:
        self.gpu.clock.wait_for_communication(self._moment(origin, index), self.name(stream))
        self._learns(stream, origin, index)

    def host_waits(self, origin: int, index: int, source: int) -> None:
        self.gpu.clock.host_waits(self._moment(origin, index), self.name(source))
        self._learns(NO_STREAM, origin, index)

    def synchronize(self) -> None:
        if self.index == len(self.record.entries) - 1:  # the launcher's, after the program's end
            self.missed = self.unawaited
        self.gpu.clock.synchronize()

    @property
    def unawaited(self) -> int:
        """Collectives and receives that neither the default stream nor the host has waited for,
        and that the host cannot have seen end."""
        known = self._known(0)
        return sum(not known >> number & 1 and (end is None or end > self.gpu.clock.host)
                   for number, end in enumerate(self.communication.ends)
                   if number not in self.communication.sends)

    def read_latency(self) -> None:
        self.gpu.read_latency()
        self.reads += 1

    def sleep(self, seconds: float) -> None:
        self.gpu.clock.work(seconds)
        if seconds > POLL:
            self.slept += seconds

    def _count(self, size: int, group: int, *_: object) -> None:
        self.communicated[str(len(self.record.groups[group][1]))] += size

    def collective(self, *fields: object) -> None:
        self._count(self.communication.collective(self.where, *fields), *fields)

    def send(self, *fields: object) -> None:
        self._count(self.communication.send(self.where, *fields), *fields)

    def receive(self, *fields: object) -> None:
        self.communication.receive(self.where, *fields)

    def settle(self, number: int) -> bool:
        return self.communication.settle(self.where, number)

    def blocked(self) -> str:
        """Return a description of the communication that this rank waits for."""
        (number,) = self.record.entries[self.index][1:]
        return f"{self.where}: {self.communication.waits_for(number)}"

    def finish(self) -> None:
        """Synchronize at the end. Raises BadRecord if a communication is unfinished."""
        if self.missed is None:
            self.missed = self.unawaited
        self.gpu.now()
        self.communication.check_complete(self.where)

    HANDLERS: ClassVar[dict[str, Callable]] = {
        "m": use_memory_of, "a": allocate, "x": refuse, "f": free, "r": resize, "e": empty_cache,
        "k": kernel, "d": download, "w": wait, "v": wait_for_communication, "h": host_waits,
        "s": synchronize, "l": read_latency, "z": sleep, "c": collective, "p": send, "q": receive,
        "t": settle}
