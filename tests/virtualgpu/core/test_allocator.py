"""The allocator's decisions: every outcome follows from c10/cuda/CUDACachingAllocator.cpp."""

import pytest

from virtualgpu.core.memory import Allocator, OutOfMemory

MIB, GIB = 2**20, 2**30


@pytest.fixture
def memory():
    return Allocator(GIB)


def gap(memory, *sizes):
    """Return allocations with a small one after each, so that freed ones are not merged."""
    made = []
    for size in sizes:
        made.append(memory.allocate(size))
        memory.allocate(2 * MIB)
    return made


@pytest.mark.parametrize(("remains", "split"), [
    (MIB, False), (MIB + 512, True), (512, False), (0, False)])
def test_a_large_block_is_split_only_if_more_than_1_mib_remains(memory, remains, split):
    segment = memory.allocate(12 * MIB)
    memory.release(segment)
    memory.allocate(12 * MIB - remains)
    assert memory.live == 12 * MIB - remains * split
    assert memory.requested == 12 * MIB - remains


def test_a_small_block_is_split_if_512_bytes_remain(memory):
    memory.release(memory.allocate(2048))
    blocks = [memory.allocate(size) for size in (MIB, MIB - 512, 1)]
    assert memory.live == 2 * MIB == memory.reserved
    assert [block.address for block in blocks] == [0, MIB, 2 * MIB - 512]


def test_the_tightest_block_serves_a_request(memory):
    large, small, medium = gap(memory, 40 * MIB, 20 * MIB, 30 * MIB)
    for block in (large, small, medium):
        memory.release(block)
    assert memory.allocate(21 * MIB).address == medium.address
    assert memory.allocate(20 * MIB).address == small.address


def test_of_equal_blocks_the_one_with_the_lowest_address_serves(memory):
    first, second = gap(memory, 30 * MIB, 30 * MIB)
    memory.release(second)
    memory.release(first)
    assert memory.allocate(30 * MIB).address == first.address


def test_the_rest_of_a_block_serves_the_next_request(memory):
    for number in range(5):
        assert memory.allocate(4 * MIB).address == number * 4 * MIB
    assert memory.reserved == 20 * MIB
    assert memory.allocate(2 * MIB).address == 20 * MIB and memory.reserved == 40 * MIB


def test_free_neighbors_are_merged_and_others_are_not(memory):
    blocks = [memory.allocate(5 * MIB) for _ in range(4)]
    memory.release(blocks[0])
    memory.release(blocks[2])
    memory.allocate(10 * MIB)  # 10 MiB are free, but not in one piece
    assert memory.reserved == 30 * MIB
    memory.release(blocks[1])
    assert memory.allocate(15 * MIB).address == 0 and memory.reserved == 30 * MIB


def test_segments_are_never_merged(memory):
    for block in [memory.allocate(10 * MIB) for _ in range(2)]:
        memory.release(block)
    memory.allocate(20 * MIB)
    assert memory.reserved == 40 * MIB and memory.segments == 3


def test_a_block_belongs_to_the_stream_that_it_was_allocated_on(memory):
    memory.release(memory.allocate(50 * MIB, "side"))
    memory.allocate(50 * MIB)
    assert memory.reserved == 100 * MIB
    memory.allocate(50 * MIB, "side")
    assert memory.reserved == 100 * MIB


def test_an_unsplit_block_returns_whole(memory):
    memory.release(memory.allocate(12 * MIB))
    block = memory.allocate(11 * MIB)
    assert memory.live == 12 * MIB
    memory.release(block)
    assert memory.live == 0 and memory.allocate(12 * MIB).address == 0


def test_empty_cache_returns_whole_segments_only(memory):
    kept, freed = memory.allocate(4 * MIB), memory.allocate(4 * MIB)
    memory.release(memory.allocate(64 * MIB, "side"))
    memory.release(freed)
    memory.release_cached()
    assert memory.reserved == 20 * MIB  # its 16 free MiB are no segment
    memory.release(kept)
    memory.release_cached()
    assert memory.reserved == memory.segments == 0 and memory.segment_allocations == 2


def test_fragments_do_not_serve_a_request_that_is_refused_then():
    memory = Allocator(100 * MIB)
    blocks = gap(memory, 38 * MIB, 38 * MIB)  # each with a segment of 20 MiB after the first
    assert memory.reserved == 96 * MIB
    memory.release(blocks[0])
    with pytest.raises(OutOfMemory, match=r"42\.00 MiB already allocated"):
        memory.allocate(50 * MIB)
    # The request is refused although 58 MiB are not in use: they are in several pieces.
    assert memory.capacity - memory.live == 58 * MIB
    assert (memory.retries, memory.ooms) == (1, 1)


def test_a_retry_after_the_cache_was_released():
    memory = Allocator(100 * MIB)
    for size in (30, 40):
        memory.release(memory.allocate(size * MIB))
    memory.allocate(80 * MIB)
    assert (memory.reserved, memory.retries, memory.ooms, memory.segment_allocations) == (80 * MIB,
                                                                                          1, 0, 3)


def test_live_is_the_sum_of_the_requests_if_every_block_is_split(memory):
    memory.split_always()
    memory.release(memory.allocate(12 * MIB))
    memory.allocate(11 * MIB + 1)
    assert memory.live == 11 * MIB + 512
