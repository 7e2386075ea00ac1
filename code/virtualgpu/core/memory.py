"""The memory of one GPU: PyTorch's caching allocator without its fragmentation.

A request is rounded up to 512 bytes. The allocator takes segments from CUDA and keeps them: 2 MiB
for requests up to 1 MiB, 20 MiB for those below 10 MiB, and multiples of 2 MiB for larger ones
(c10/cuda/CUDACachingAllocator.cpp). Fragmentation is not modeled: any free bytes of a pool can
serve a request, so `reserved` is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 2**20
ROUND, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
MEDIUM, MEDIUM_SEGMENT, LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


class OutOfMemory(Exception):
    """A request does not fit; the message is PyTorch's."""


@dataclass
class Pool:
    """Allocations of one size class: small ones, or the others.

    Attributes:
        live: bytes in use.
        reserved: bytes taken from CUDA.
        requested: bytes in use, before rounding.
        count: allocations in use.
        peaks: peaks of these four since their last reset, in this order.
        totals: sums of everything added to these four since the totals' last reset.
        before: values of these four at that reset.
    """

    live: int = 0
    reserved: int = 0
    requested: int = 0
    count: int = 0
    peaks: list[int] = field(default_factory=lambda: [0] * 4)
    totals: list[int] = field(default_factory=lambda: [0] * 4)
    before: list[int] = field(default_factory=lambda: [0] * 4)

    @property
    def levels(self) -> tuple[int, int, int, int]:
        return self.live, self.reserved, self.requested, self.count

    def reset_peaks(self) -> None:
        self.peaks = list(self.levels)

    def reset_totals(self) -> None:
        self.before, self.totals = list(self.levels), [0] * 4

    def freed(self, at: int) -> int:
        """Return how much was freed since the totals' last reset.

        Args:
            at: index in `levels`.
        """
        return self.before[at] + self.totals[at] - self.levels[at]

    def add(self, rounded: int, size: int) -> None:
        """Count one allocation.

        Args:
            rounded: bytes allocated.
            size: bytes requested.
        """
        self.live += rounded
        self.requested += size
        self.count += rounded > 0
        totals, peaks = self.totals, self.peaks
        totals[0] += rounded
        totals[2] += size
        if self.live > peaks[0]:
            peaks[0] = self.live
        if self.requested > peaks[2]:
            peaks[2] = self.requested
        if self.count > peaks[3]:
            peaks[3] = self.count
        totals[3] += rounded > 0

    def grow(self, size: int) -> None:
        """Take a segment of so many bytes from CUDA."""
        self.reserved += size
        self.totals[1] += size
        self.peaks[1] = max(self.peaks[1], self.reserved)


def up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Allocator:
    """Bytes allocated and reserved, now and at the peak.

    Attributes:
        capacity: the GPU's memory in bytes, as CUDA reports it.
        taken: bytes of CUDA's context and the communication buffers. `take` adds to them.
        peak, peak_reserved, peak_requested, peak_count: peaks since the last reset_peaks.
        run_peak, run_peak_reserved: peaks since the start.
    """

    def __init__(self, capacity: int, taken: int = 0) -> None:
        self.capacity, self.taken = capacity, taken
        self.small, self.large = Pool(), Pool()
        self.peak = self.peak_reserved = 0
        self.peak_requested = self.peak_count = 0
        self.refused = 0  # requests that did not fit
        self.message = pytorch_1_message  # formats the out-of-memory message
        self._past_peaks = 0, 0  # allocated and reserved, before the last reset

    @property
    def live(self) -> int:
        return self.small.live + self.large.live

    @property
    def reserved(self) -> int:
        return self.small.reserved + self.large.reserved

    @property
    def requested(self) -> int:
        """Bytes in use, before rounding."""
        return self.small.requested + self.large.requested

    @property
    def count(self) -> int:
        """Allocations in use."""
        return self.small.count + self.large.count

    @property
    def free(self) -> int:
        """Bytes that CUDA could still allocate."""
        return self.capacity - self.taken - self.reserved

    @property
    def run_peak(self) -> int:
        return max(self.peak, self._past_peaks[0])

    @property
    def run_peak_reserved(self) -> int:
        return max(self.peak_reserved, self._past_peaks[1])

    def reset_peaks(self) -> None:
        """Reset the peaks to the current values, as torch.cuda.reset_peak_memory_stats does."""
        self._past_peaks = self.run_peak, self.run_peak_reserved
        self.peak, self.peak_reserved = self.live, self.reserved
        self.peak_requested, self.peak_count = self.requested, self.count
        for pool in (self.small, self.large):
            pool.reset_peaks()

    def take(self, size: int) -> None:
        """Allocate memory outside of PyTorch, such as a communicator's buffers.

        Raises:
            OutOfMemory: The request does not fit.
        """
        if size > self.free:
            self.release_cached()
            if size > self.free:
                raise OutOfMemory(self.message(self, size))
        self.taken += size

    def allocate(self, size: int) -> None:
        """Allocate memory from a pool.

        Raises:
            OutOfMemory: The request does not fit. The cache was released; nothing else changed.
        """
        rounded = up(size, ROUND)
        pool = self.small if rounded <= SMALL else self.large
        missing = pool.live + rounded - pool.reserved
        if missing > 0:
            unit = SMALL_SEGMENT if pool is self.small else (
                MEDIUM_SEGMENT if rounded < MEDIUM else LARGE_ROUND)
            if up(missing, unit) > self.free:
                self.release_cached()
                missing = pool.live + rounded - pool.reserved
                if up(missing, unit) > self.free:
                    self.refused += 1
                    raise OutOfMemory(self.message(self, rounded))
            pool.grow(up(missing, unit))
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        pool.add(rounded, size)
        small, large = self.small, self.large
        if small.requested + large.requested > self.peak_requested:
            self.peak_requested = small.requested + large.requested
        if small.live + large.live > self.peak:
            self.peak = small.live + large.live
        if small.count + large.count > self.peak_count:
            self.peak_count = small.count + large.count

    def release(self, size: int) -> None:
        """Release an allocation of `size` bytes."""
        rounded = up(size, ROUND)
        pool = self.small if rounded <= SMALL else self.large
        pool.live -= rounded
        pool.requested -= size
        pool.count -= rounded > 0

    def release_cached(self) -> None:
        """Return unused segments to CUDA, as PyTorch does before it raises an error."""
        self.small.reserved = up(self.small.live, SMALL_SEGMENT)
        self.large.reserved = up(self.large.live, LARGE_ROUND)



def pytorch_1_message(memory: Allocator, size: int) -> str:
    """Return the out-of-memory message of PyTorch 1.10, which the classic trainer used.

    A rank sees only its own GPU, as in a Slurm job, and so it is always GPU 0.

    Args:
        memory: the allocator that is out of memory.
        size: the request, in bytes.
    """
    return (f"CUDA out of memory. Tried to allocate {amount(size)} (GPU 0; "
            f"{amount(memory.capacity)} total capacity; {amount(memory.live)} already allocated; "
            f"{amount(memory.free)} free; {amount(memory.reserved)} reserved in total by PyTorch)")


def pytorch_2_message(memory: Allocator, size: int, index: int = 0) -> str:
    """Return the out-of-memory message of PyTorch 2, as an H100 printed it with 2.11.

    Args:
        memory: the allocator that is out of memory.
        size: the request, in bytes.
        index: the GPU's number, as in cuda:INDEX.
    """
    used, unused = memory.taken + memory.reserved, memory.reserved - memory.live
    return (f"CUDA out of memory. Tried to allocate {amount(size)}. GPU {index} has a total "
            f"capacity of {amount(memory.capacity)} of which {amount(memory.free)} is free. "
            f"Including non-PyTorch memory, this process has {amount(used)} memory in use. Of the "
            f"allocated memory {amount(memory.live)} is allocated by PyTorch, and {amount(unused)} "
            "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
            "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
            "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
            "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)")


def amount(size: int) -> str:
    """Format bytes as in CUDA's messages, such as 512.00 MiB or 15.78 GiB."""
    for unit, name in ((2**30, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
