"""The memory of one card: PyTorch's caching allocator without its fragmentation.

A request is rounded to 512 bytes. The allocator takes segments from CUDA and keeps them: of 2 MiB
for requests up to 1 MiB, of 20 MiB for those below 10 MiB, and for larger ones what they need in
multiples of 2 MiB (c10/cuda/CUDACachingAllocator.cpp). Left out: a free piece is too small or in
the wrong place for a request. Here any free bytes of a pool serve, so `reserved` is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
ROUND, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
MEDIUM, MEDIUM_SEGMENT, LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


class OutOfMemory(Exception):
    """A request does not fit; the text is CUDA's."""


@dataclass
class Pool:
    """Bytes in use and bytes taken from CUDA."""

    live: int = 0
    reserved: int = 0


def up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Allocator:
    """Bytes allocated and reserved, now and at the peak.

    capacity: the card's memory in bytes, as CUDA reports it. taken: what CUDA's context and the
    communication buffers take of it; it may grow (`take`). peak, peak_reserved, peak_requested:
    since reset_peaks was last called; run_peak, run_peak_reserved: since the start.
    """

    def __init__(self, capacity: int, taken: int = 0) -> None:
        self.capacity, self.taken = capacity, taken
        self.small, self.large = Pool(), Pool()
        self.peak = self.peak_reserved = 0
        self.requested = self.peak_requested = 0  # before rounding
        self.refused = 0  # requests that did not fit
        self._past_peaks = 0, 0  # allocated and reserved, before the last reset

    @property
    def live(self) -> int:
        return self.small.live + self.large.live

    @property
    def reserved(self) -> int:
        return self.small.reserved + self.large.reserved

    @property
    def free(self) -> int:
        """What CUDA could still give."""
        return self.capacity - self.taken - self.reserved

    @property
    def run_peak(self) -> int:
        return max(self.peak, self._past_peaks[0])

    @property
    def run_peak_reserved(self) -> int:
        return max(self.peak_reserved, self._past_peaks[1])

    def reset_peaks(self) -> None:
        """Let the resettable peaks start over, as torch.cuda.reset_peak_memory_stats does."""
        self._past_peaks = self.run_peak, self.run_peak_reserved
        self.peak, self.peak_reserved = self.live, self.reserved
        self.peak_requested = self.requested

    def take(self, size: int) -> None:
        """Memory that is not torch's: a context, a communicator. Raises OutOfMemory."""
        if size > self.free:
            self.release_cached()
            if size > self.free:
                raise OutOfMemory(self._explain(size))
        self.taken += size

    def allocate(self, size: int) -> None:
        """Raises OutOfMemory, and then nothing is changed but the cache, which is given back."""
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
                    raise OutOfMemory(self._explain(rounded))
            pool.reserved += up(missing, unit)
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        pool.live += rounded
        self.requested += size
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested
        if self.live > self.peak:
            self.peak = self.live

    def release(self, size: int) -> None:
        """Give back what `allocate(size)` took."""
        rounded = up(size, ROUND)
        pool = self.small if rounded <= SMALL else self.large
        pool.live -= rounded
        self.requested -= size

    def release_cached(self) -> None:
        """Segments without a live byte go back to CUDA, as torch does before it gives up."""
        self.small.reserved = up(self.small.live, SMALL_SEGMENT)
        self.large.reserved = up(self.large.live, LARGE_ROUND)

    def _explain(self, size: int) -> str:
        """In the classic words. GPU 0: a rank sees its own card only, as in a Slurm job."""
        return (f"CUDA out of memory. Tried to allocate {amount(size)} (GPU 0; "
                f"{amount(self.capacity)} total capacity; {amount(self.live)} already allocated; "
                f"{amount(self.free)} free; {amount(self.reserved)} reserved in total by PyTorch)")


def amount(size: int) -> str:
    """Bytes as CUDA's messages have them: 512.00 MiB, 15.78 GiB."""
    for unit, name in ((2**30, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
