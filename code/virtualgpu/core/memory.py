"""The memory of one GPU, managed like PyTorch's caching allocator with its default settings.

The allocator takes segments from CUDA, splits them into blocks, and keeps the blocks that are freed
(c10/cuda/CUDACachingAllocator.cpp; segments.py has the blocks). A request is rounded up to 512
bytes. The smallest free block of its pool and stream that is large enough serves it; if there is
none, CUDA is asked for a segment. Free neighbors within a segment are merged. If CUDA has no room
for a segment, all segments without allocations are returned to it before the request fails.
"""

from __future__ import annotations

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.segments import FreeBlocks, MemoryBlock, Pool

MIB = 2**20
ROUND, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
MEDIUM, MEDIUM_SEGMENT, LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


class OutOfMemory(Exception):
    """Raised if a request does not fit; the message is PyTorch's."""


def round_up(size: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def segment_size(rounded: int) -> int:
    """Return the size, in bytes, of the segment that serves a request when no free block can."""
    if rounded <= SMALL:
        return SMALL_SEGMENT
    return MEDIUM_SEGMENT if rounded < MEDIUM else round_up(rounded, LARGE_ROUND)


class Allocator:
    """The allocator of one GPU: bytes allocated and reserved, now and at the peak.

    Attributes:
        capacity: the GPU's memory in bytes, as CUDA reports it.
        non_pytorch: bytes of CUDA's context and of communication buffers (allocate_outside).
        small: blocks of up to 1 MiB, each split if at least 512 bytes remain.
        large: the other blocks, each split if more than 1 MiB remains.
        peak, peak_reserved, peak_requested, peak_count, peak_segments: peaks since the last
            reset_peaks.
        run_peak, run_peak_reserved: peaks since the start.
        ooms: number of requests that did not fit.
        retries: number of requests for which the cache had to be released.
        segment_allocations: number of segments that CUDA allocated.
    """

    def __init__(self, capacity: int, non_pytorch: int = 0) -> None:
        self.capacity, self.non_pytorch = capacity, non_pytorch
        self.small, self.large = Pool(ROUND), Pool(SMALL + ROUND)
        self.peak = self.peak_reserved = 0
        self.peak_requested = self.peak_count = self.peak_segments = 0
        self.ooms = self.retries = self.segment_allocations = 0
        self.message = pytorch_1_message  # formats the out-of-memory message
        self._past_peaks = 0, 0  # allocated and reserved, before the last reset
        self._end = 0  # the address after the last segment; addresses are never reused

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
    def segments(self) -> int:
        """Segments that PyTorch holds."""
        return self.small.segments + self.large.segments

    @property
    def free(self) -> int:
        """Bytes that CUDA could still allocate."""
        return self.capacity - self.non_pytorch - self.reserved

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
        self.peak_segments = self.segments
        for pool in (self.small, self.large):
            pool.reset_peaks()

    def split_always(self) -> None:
        """Split every block, even if only 512 bytes remain.

        `live` is then the sum of the rounded requests, whatever was freed before. By default, a
        large block in use can be up to 1 MiB larger than its request.
        """
        self.large.min_remainder = ROUND

    def allocate_outside(self, size: int) -> None:
        """Allocate memory outside of PyTorch, such as a communicator's buffers.

        Raises:
            OutOfMemory: The request does not fit.
        """
        if size > self.free:
            self.release_cached()
            if size > self.free:
                raise OutOfMemory(self.message(self, size))
        self.non_pytorch += size

    def allocate(self, size: int, stream: str = COMPUTE) -> MemoryBlock:
        """Allocate a block.

        Args:
            size: bytes requested.
            stream: the current stream; only its own free blocks can serve the request.

        Raises:
            OutOfMemory: The request does not fit. The cache was released; nothing else changed.
        """
        rounded = -(-size // ROUND) * ROUND
        small, large = self.small, self.large
        pool = small if rounded <= SMALL else large
        free = pool.streams.get(stream) or pool.free_blocks(stream)
        if not rounded:  # PyTorch does not ask its allocator for empty tensors
            return MemoryBlock(0, 0, free)
        block = free.take(rounded) or free.take(rounded, self._segment(rounded, free))
        block.requested = size
        pool.add(block.size, size)
        live = small.live + large.live
        if live > self.peak:
            self.peak = live
        requested = small.requested + large.requested
        if requested > self.peak_requested:
            self.peak_requested = requested
        count = small.count + large.count
        if count > self.peak_count:
            self.peak_count = count
        return block

    def release(self, block: MemoryBlock) -> None:
        """Release a block, and merge it with its free neighbors."""
        size, free = block.size, block.free
        if size:
            pool = free.pool
            pool.live -= size
            pool.requested -= block.requested
            pool.count -= 1
            free.release(block)

    def _segment(self, rounded: int, free: FreeBlocks) -> MemoryBlock:
        """Take a segment from CUDA, and return it as one block.

        Args:
            rounded: the request.
            free: the free blocks of its pool and stream.
        """
        size = segment_size(rounded)
        if size > self.free:
            self.release_cached()
            self.retries += 1
            if size > self.free:
                self.ooms += 1
                raise OutOfMemory(self.message(self, size))
        block = MemoryBlock(self._end, size, free)
        self._end += size
        free.pool.grow(size)
        self.segment_allocations += 1
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.peak_segments = max(self.peak_segments, self.segments)
        return block

    def release_cached(self) -> None:
        """Return every segment without allocations to CUDA, as torch.cuda.empty_cache does."""
        for pool in (self.small, self.large):
            pool.release_cached()


def pytorch_1_message(memory: Allocator, size: int) -> str:
    """Return the out-of-memory message of PyTorch 1.10, which the classic trainer used.

    A rank sees only its own GPU, as in a Slurm job, and so it is always GPU 0.

    Args:
        memory: the allocator that is out of memory.
        size: the bytes that CUDA was asked for.
    """
    return (f"CUDA out of memory. Tried to allocate {amount(size)} (GPU 0; "
            f"{amount(memory.capacity)} total capacity; {amount(memory.live)} already allocated; "
            f"{amount(memory.free)} free; {amount(memory.reserved)} reserved in total by PyTorch)")


def pytorch_2_message(memory: Allocator, size: int, index: int = 0) -> str:
    """Return the out-of-memory message of PyTorch 2, as an H100 printed it with 2.11.

    Args:
        memory: the allocator that is out of memory.
        size: the bytes that CUDA was asked for.
        index: the GPU's number, as in cuda:INDEX.
    """
    used, unused = memory.non_pytorch + memory.reserved, memory.reserved - memory.live
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
