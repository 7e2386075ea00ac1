"""Memory in a record: every tensor lies in a storage that is allocated, and no kernel uses a buffer
that a collective or a transfer is not done with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.replay.errors import BadRecord
from virtualgpu.replay.format import HOST


@dataclass
class Use:
    """Bytes of a storage that a collective or a transfer reads or writes.

    Attributes:
        start: the first byte.
        stop: the first byte behind them.
        writes: whether it writes them.
        number: of the communication.
        end: when it is over; None where the ranks have not told each other yet.
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
        self.under_way: defaultdict[int, list[Use]] = defaultdict(list)  # by storage
        self.by_number: defaultdict[int, list[Use]] = defaultdict(list)

    def check(self, storage: int, start: int, size: int, where: str) -> None:
        """Raise BadRecord unless these bytes are allocated."""
        if storage not in self.gpu.blocks:
            raise BadRecord(f"{where}: storage {storage} is not allocated")
        held = self.gpu.blocks[storage].requested
        if start + size > held:
            raise BadRecord(f"{where}: bytes {start} to {start + size} of storage {storage}, which "
                            f"has {held}")

    def begin(self, number: int, ranges: Sequence[int], writes: bool, where: str) -> int:
        """A communication reads or writes tensors from now on; returns their bytes.

        Args:
            number: of the communication.
            ranges: of the tensors, as the record has them.
            writes: whether it writes them.
            where: for errors.
        """
        whole = 0
        for storage, start, size in triples(ranges):
            self.check(storage, start, size, where)
            use = Use(start, start + size, writes, number)
            self.under_way[storage].append(use)
            self.by_number[number].append(use)
            whole += size
        return whole

    def resized(self, storage: int) -> None:
        """A storage has got other memory; what reads the old one may go on, because the allocator
        does not give it away before that (record_stream). FSDP resizes its shards so."""
        if storage in self.under_way:
            self.under_way[storage] = [use for use in self.under_way[storage] if use.writes]

    def end(self, number: int, end: float) -> None:
        """It is known when a communication is over."""
        for use in self.by_number.pop(number, ()):
            use.end = end

    def use(self, storage: int, start: int, size: int, writes: bool, at: float, where: str
            ) -> None:
        """A kernel uses a tensor.

        Args:
            storage: the tensor's, or HOST.
            start: its first byte.
            size: its bytes.
            writes: whether it is written.
            at: when the kernel starts.
            where: for errors.

        Raises BadRecord where a communication is not done with these bytes.
        """
        if storage == HOST:
            return
        self.check(storage, start, size, where)
        if storage not in self.under_way:
            return
        left = []
        for use in self.under_way[storage]:
            if use.end is not None and use.end <= self.gpu.clock.host:
                continue  # whatever comes next starts later
            left.append(use)
            late = use.end is None or use.end > at
            if late and (writes or use.writes) and start < use.stop and use.start < start + size:
                what = "writing" if use.writes else "reading"
                raise BadRecord(
                    f"{where}: uses bytes {start} to {start + size} of storage {storage} while "
                    f"communication {use.number} of this rank is still {what} them: nothing waits "
                    "for it")
        if left:
            self.under_way[storage] = left
        else:
            del self.under_way[storage]


def triples(ranges: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    return zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)
