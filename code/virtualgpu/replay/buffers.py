"""Check memory in a record: every tensor is in an allocated storage, and no kernel uses a buffer of
an unfinished collective or transfer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.replay.format import HOST, BadRecord


@dataclass
class BufferUse:
    """Bytes of a storage that a collective or a transfer reads or writes.

    Attributes:
        start: the first byte.
        stop: the byte after the last one.
        writes: whether it writes them.
        number: number of the communication.
        end: when it ends, in seconds; None until the ranks have exchanged their times.
    """

    start: int
    stop: int
    writes: bool
    number: int
    end: float | None = None


class Buffers:
    """The storages of one rank."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu
        self.unfinished: defaultdict[int, list[BufferUse]] = defaultdict(list)  # by storage
        self.by_number: defaultdict[int, list[BufferUse]] = defaultdict(list)

    def check(self, storage: int, start: int, size: int, where: str) -> None:
        """Raise BadRecord unless these bytes are allocated."""
        if storage not in self.gpu.blocks:
            raise BadRecord(f"{where}: storage {storage} is not allocated")
        held = self.gpu.blocks[storage].requested
        if start + size > held:
            raise BadRecord(f"{where}: bytes {start} to {start + size} of storage {storage}, which "
                            f"has {held}")

    def begin(self, number: int, ranges: Sequence[int], writes: bool, where: str) -> int:
        """Begin a communication that reads or writes tensors; return their bytes.

        Args:
            number: number of the communication.
            ranges: RANGES of the tensors, as in format.py.
            writes: whether it writes them.
            where: rank and entry, for error messages.
        """
        total = 0
        for storage, start, size in triples(ranges):
            self.check(storage, start, size, where)
            use = BufferUse(start, start + size, writes, number)
            self.unfinished[storage].append(use)
            self.by_number[number].append(use)
            total += size
        return total

    def resized(self, storage: int) -> None:
        """Forget reads of a storage that was reallocated, as FSDP's shards are.

        They may go on, because the allocator does not reuse the old memory before (record_stream).
        """
        if storage in self.unfinished:
            self.unfinished[storage] = [use for use in self.unfinished[storage] if use.writes]

    def end(self, number: int, end: float) -> None:
        """Set the time at which a communication ends."""
        for use in self.by_number.pop(number, ()):
            use.end = end

    def use(self, storage: int, start: int, size: int, writes: bool, at: float, where: str
            ) -> None:
        """Check that a kernel may use a tensor.

        Args:
            storage: the tensor's storage, or HOST.
            start: its first byte.
            size: its bytes.
            writes: whether the kernel writes it.
            at: when the kernel starts, in seconds.
            where: rank and entry, for error messages.

        Raises:
            BadRecord: a communication still uses these bytes.
        """
        if storage == HOST:
            return
        self.check(storage, start, size, where)
        if storage not in self.unfinished:
            return
        remaining = []
        for use in self.unfinished[storage]:
            if use.end is not None and use.end <= self.gpu.clock.host:
                continue  # every later kernel starts after it
            remaining.append(use)
            overlaps = use.end is None or use.end > at
            if overlaps and (writes
                             or use.writes) and start < use.stop and use.start < start + size:
                what = "writing" if use.writes else "reading"
                raise BadRecord(
                    f"{where}: uses bytes {start} to {start + size} of storage {storage} while "
                    f"communication {use.number} of this rank is still {what} them: the program "
                    "does not wait for it")
        if remaining:
            self.unfinished[storage] = remaining
        else:
            del self.unfinished[storage]


def triples(ranges: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (storage, offset, bytes) of each tensor."""
    return zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)
