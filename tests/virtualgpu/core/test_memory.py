"""The allocator's arithmetic and its message."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.memory import Allocator, OutOfMemory, amount, pytorch_2_message

MIB, GIB = 2**20, 2**30
V100 = CARDS["v100-sxm2-16gb"]


@pytest.mark.parametrize(("size", "live"), [
    (0, 0), (1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512),
])
def test_a_request_is_rounded_to_512_bytes(size, live):
    memory = Allocator(GIB)
    memory.allocate(size)
    assert (memory.live, memory.peak, memory.requested) == (live, live, size)


@pytest.mark.parametrize(("size", "reserved"), [
    (1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - 512, 20 * MIB),
    (10 * MIB, 10 * MIB), (10 * MIB + 1, 12 * MIB), (33 * MIB, 34 * MIB),
])
def test_segments(size, reserved):
    memory = Allocator(GIB)
    block = memory.allocate(size)
    assert memory.reserved == memory.peak_reserved == reserved
    memory.release(block)
    assert (memory.live, memory.reserved, memory.peak_reserved) == (0, reserved, reserved)
    memory.allocate(size)  # from the cache
    assert memory.peak_reserved == reserved


def test_a_segment_serves_many_requests_of_its_pool_only():
    memory = Allocator(GIB)
    for _ in range(4):
        memory.allocate(MIB // 2)
    assert memory.reserved == 2 * MIB
    memory.allocate(1)
    assert memory.reserved == 4 * MIB
    memory.allocate(4 * MIB)  # of the other pool: free small blocks do not serve it
    assert memory.reserved == 24 * MIB
    memory.allocate(4 * MIB)
    assert memory.reserved == 24 * MIB


def test_the_run_s_peaks_survive_a_reset():
    memory = Allocator(GIB)
    memory.release(memory.allocate(30 * MIB))
    memory.release_cached()
    memory.reset_peaks()
    memory.allocate(2 * MIB)
    assert (memory.peak, memory.peak_requested, memory.peak_reserved) == (
        2 * MIB, 2 * MIB, 20 * MIB)
    assert (memory.run_peak, memory.run_peak_reserved) == (30 * MIB, 30 * MIB)


def test_pools_count_their_own_allocations():
    memory = Allocator(GIB)
    blocks = [memory.allocate(size) for size in (100, 3 * MIB, 200)]
    memory.release(blocks[0])
    small, large = memory.small, memory.large
    # Bytes in use, taken from CUDA, and asked for; allocations; segments.
    assert small.levels == (512, 2 * MIB, 200, 1, 1)
    assert small.peaks == small.totals == [1024, 2 * MIB, 300, 2, 1]
    assert large.levels == tuple(large.peaks) == (3 * MIB, 20 * MIB, 3 * MIB, 1, 1)
    assert [small.freed(at) for at in range(5)] == [512, 0, 100, 1, 0]
    assert (memory.count, memory.peak_count) == (2, 3)
    memory.reset_peaks()
    small.reset_totals()
    memory.release(blocks[2])
    assert small.peaks == [512, 2 * MIB, 200, 1, 1] and memory.peak_count == 2
    assert (small.totals, small.freed(0), small.freed(3)) == ([0] * 5, 512, 1)


def test_the_peak_is_of_what_lives_at_once():
    memory = Allocator(GIB)
    first = memory.allocate(3 * MIB)
    memory.allocate(5 * MIB)
    memory.release(first)
    memory.allocate(MIB + 512)
    assert (memory.live, memory.peak) == (6 * MIB + 512, 8 * MIB)
    memory.allocate(MIB + 512)  # gets what is left of the 3 MiB, which is too little to be split
    assert (memory.live, memory.peak) == (8 * MIB, 8 * MIB)
    assert (memory.requested, memory.peak_requested) == (7 * MIB + 1024, 8 * MIB)


def test_the_cache_is_given_back_before_memory_runs_out():
    memory = Allocator(100 * MIB, 10 * MIB)
    large = memory.allocate(60 * MIB)
    memory.allocate(512)
    memory.release(large)
    assert memory.reserved == 62 * MIB and memory.free == 28 * MIB
    memory.allocate(MIB // 2)  # nothing is given back without need
    assert memory.reserved == 62 * MIB
    memory.allocate(80 * MIB)
    assert memory.reserved == 82 * MIB and memory.free == 8 * MIB
    with pytest.raises(OutOfMemory):
        memory.allocate(9 * MIB)
    assert memory.live == 80 * MIB + MIB // 2 + 512  # as if it had not been asked


def test_the_last_byte_can_be_had_and_no_more():
    memory = Allocator(40 * MIB, 10 * MIB)
    memory.allocate(30 * MIB)
    assert memory.free == 0
    for ask in (memory.allocate, memory.allocate_outside):
        with pytest.raises(OutOfMemory):
            ask(1)


def test_what_is_not_torch_s_takes_room():
    memory = Allocator(100 * MIB)
    memory.release(memory.allocate(50 * MIB))
    memory.allocate_outside(80 * MIB)  # the cache makes room for it
    assert (memory.reserved, memory.free, memory.non_pytorch) == (0, 20 * MIB, 80 * MIB)
    with pytest.raises(OutOfMemory, match=r"^CUDA out of memory. Tried to allocate 21.00 MiB"):
        memory.allocate_outside(21 * MIB)
    assert memory.non_pytorch == 80 * MIB


def test_the_classic_message_to_the_letter():
    memory = Allocator(V100.memory, 600 * MIB)
    memory.allocate(15 * GIB)
    with pytest.raises(OutOfMemory) as error:
        memory.allocate(512 * MIB)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.78 GiB total capacity; "
        "15.00 GiB already allocated; 200.00 MiB free; 15.00 GiB reserved in total by PyTorch)")


def test_today_s_message_to_the_letter():
    """The text is an H100's with PyTorch 2.11 (benchmarks/results/gpu_h100.md)."""
    memory = Allocator(V100.memory, 600 * MIB)
    memory.message = pytorch_2_message
    memory.allocate(15 * GIB)
    memory.allocate(3 * 512)
    with pytest.raises(OutOfMemory) as error:
        memory.allocate(512 * MIB)
    assert str(error.value) == (
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 15.78 GiB "
        "of which 198.00 MiB is free. Including non-PyTorch memory, this process has 15.59 GiB "
        "memory in use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 2.00 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)")


def test_what_programs_that_read_old_logs_look_for():
    """PyTorch 1.10: c10/cuda/CUDACachingAllocator.cpp, format_size and TORCH_CHECK_WITH."""
    size = r"\d+\.\d\d (?:KiB|MiB|GiB)|\d+ bytes"
    with pytest.raises(torch.OutOfMemoryError) as error, VirtualGpu(V100):
        torch.empty(2**33, device="meta")
    assert re.fullmatch(
        rf"CUDA out of memory\. Tried to allocate ({size}) \(GPU 0; ({size}) total capacity; "
        rf"({size}) already allocated; ({size}) free; ({size}) reserved in total by PyTorch\) "
        r"\[virtual v100-sxm2-16gb\]", str(error.value))


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (1536 * 1024, "1.50 MiB"),
    (16_160 * MIB, "15.78 GiB")])
def test_amounts(size, text):
    assert amount(size) == text


def test_the_message_names_what_cuda_was_asked_for():
    """Not the request: PyTorch reports alloc_size, as in the many lines that end in ".00 MiB"."""
    for size, text in ((1, "2.00 MiB"), (MIB + 1, "20.00 MiB"), (33 * MIB, "34.00 MiB")):
        with pytest.raises(OutOfMemory, match=f"Tried to allocate {text} "):
            Allocator(MIB).allocate(size)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50 * MIB), st.sampled_from("ab")),
                max_size=60))
def test_the_books_always_balance(requests):
    memory, held = Allocator(400 * MIB, 30 * MIB), []
    for give_back, size, stream in requests:
        if give_back and held:
            memory.release(held.pop(size % len(held)))
        else:
            try:
                held.append(memory.allocate(size, stream))
            except OutOfMemory:
                assert memory.reserved + 30 * MIB + size > 400 * MIB - 20 * MIB
        assert_tiled(memory, held)
        assert memory.requested == sum(block.requested for block in held)
        assert memory.live == sum(block.size for block in held)
        assert memory.count == sum(block.size > 0 for block in held)
        assert memory.live <= memory.reserved <= memory.peak_reserved <= 370 * MIB
        assert memory.peak_requested >= memory.requested and memory.peak >= memory.live
    for block in held:
        memory.release(block)
    memory.release_cached()
    assert memory.live == memory.reserved == memory.segments == memory.count == 0
    assert memory.free == 370 * MIB


def assert_tiled(memory, held):
    """Blocks fill their segments without gaps, and no two neighbors are free.

    Args:
        memory: the allocator.
        held: blocks in use.
    """
    used = {block.address: block for block in held if block.size}
    free = {}
    for pool in (memory.small, memory.large):
        for blocks in pool.streams.values():
            assert blocks.keys == sorted(blocks.keys)
            assert [key >> 64 for key in blocks.keys] == [one.size for one in blocks.blocks]
            free |= {block.address: block for block in blocks.blocks}
    assert not used.keys() & free.keys()
    every, total = {**used, **free}, 0
    for address, block in every.items():
        total += block.size
        assert block.used == (address in used)
        rounded = max(512, -(-block.requested // 512) * 512)
        least = 512 if rounded <= MIB else MIB + 512
        assert not block.used or 0 <= block.size - rounded < least
        after = block.after
        if after is not None:
            assert every[address + block.size] is after and after.before is block
            assert (block.used or after.used) and after.free is block.free
    assert total == memory.reserved
    assert sum(block.before is None for block in every.values()) == memory.segments
