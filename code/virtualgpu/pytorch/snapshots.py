"""torch.cuda.memory_snapshot: the allocator's segments and blocks at this moment."""

from __future__ import annotations

from collections.abc import Iterator

from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.segments import MemoryBlock, Pool
from virtualgpu.pytorch.mode import CudaGpu

NO_POOL = (0, 0)  # the ID of the default pool


def snapshot(gpu: CudaGpu) -> dict:
    """Return what torch._C._cuda_memorySnapshot returns, without stack frames and history."""
    used: dict[str, list[dict]] = {}
    memory = gpu.memory
    live = [block for block in gpu.blocks.values() if block.size]
    for kind, pool in (("small", memory.small), ("large", memory.large)):
        used[kind] = [segment(gpu, kind, pool, first) for first in heads(pool, live)]
    return {"segments": used["small"] + used["large"], "device_traces": [[]],
            "external_annotations": [],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}}


def heads(pool: Pool, live: list[MemoryBlock]) -> Iterator[MemoryBlock]:
    """Yield the first block of each segment of a pool.

    Args:
        live: the blocks in use.
    """
    free = [block for blocks in pool.streams.values() for block in blocks.blocks]
    for block in sorted((*free, *live), key=lambda one: one.address):
        if block.before is None and block.free.pool is pool:
            yield block


def segment(gpu: CudaGpu, kind: str, pool: Pool, first: MemoryBlock) -> dict:
    """Return a segment.

    Args:
        gpu: the virtual GPU.
        kind: "small" or "large".
        pool: its pool.
    """
    parts: list[MemoryBlock] = []
    block: MemoryBlock | None = first
    while block is not None:
        parts.append(block)
        block = block.after
    used = [part for part in parts if part.used]
    stream = next(name for name, blocks in pool.streams.items() if blocks is first.free)
    allocated = sum(part.size for part in used)
    return {
        "device": gpu.index, "address": first.address, "segment_type": kind,
        "segment_pool_id": NO_POOL, "is_expandable": False, "frames": [],
        "stream": 0 if stream == COMPUTE else list(pool.streams).index(stream),
        "total_size": sum(part.size for part in parts), "allocated_size": allocated,
        "active_size": allocated, "requested_size": sum(part.requested for part in used),
        "blocks": [{"address": part.address, "size": part.size,
                    "requested_size": part.requested if part.used else 0, "frames": [],
                    "state": "active_allocated" if part.used else "inactive"} for part in parts]}
