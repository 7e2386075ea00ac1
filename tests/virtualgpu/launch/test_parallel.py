"""Distributed programs as people write them run unmodified."""

import functools
import re

import pytest

from virtualgpu.core import cards

from .running import printed, run

pytestmark = pytest.mark.slow  # ranks that run whole programs


@pytest.mark.parametrize("variant", ["plain", "views", "unused", "no_sync", "hook"])
def test_replicas_of_ddp_stay_equal(variant):
    first, *_ = printed("ddp", variant, "64", gpus="h100:2")
    assert re.findall(r"loss (\d+\.\d+)", first)
    one, other = re.findall(r"tensor\(\[(\S+)\]", first)
    assert one == other


@pytest.mark.parametrize("program", ["ring", "overlapped", "tensor"])
def test_parallelism_by_hand(program):
    for text in printed("handwritten", program, gpus="h100:2"):
        assert "True" in text and "False" not in text


SHARDED = {"fsdp1": 2, "fsdp2": 2, "hsdp": 4, "dtensor": 2, "meshes": 8, "zero": 2,
           "pipelining": 2, "context": 2}


# sharded.py's model has four blocks between two layers, zero's two blocks; all is in MiB.
WIDTH = 1024
BLOCK = 4 * (2 * 4 * WIDTH**2 + 5 * WIDTH) / 2**20
LOCAL = 4 * (2 * WIDTH + 2 * WIDTH**2 + 2 * WIDTH + 2 * WIDTH**2 + WIDTH) / 2**20  # dtensor's
SCHEDULES = {name: vee for vee, names in (
    (False, ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")),
    (True, ("ZBVZeroBubble", "DualPipeV"))) for name in names}
CUBLAS = 65  # MiB: workspaces of the forward and of the backward pass
# Bytes at the peak: parameters, gradients, and two states of Adam, halved where they are sharded,
# and at most two blocks more (sharded), or a second copy of DDP's buckets (zero).
PEAKS = {**dict.fromkeys(("fsdp1", "fsdp2", "hsdp"), (4 * 4 * BLOCK / 2, 2.5 * BLOCK)),
         "zero": (2 * BLOCK * (1 + 1 + 2 / 2 + 1), 2 * BLOCK)}
COLLECTIVES = dict.fromkeys(SHARDED, frozenset(("all_gather", "reduce_scatter", "all_reduce"))) | {
    "zero": {"broadcast", "all_reduce"}, "pipelining": {"send"},
    "context": {"all_gather", "all_to_all"}}


@functools.cache
def everyone(program):
    """All ranks of a program of sharded.py, each in a process."""
    return run("sharded", program, gpus=f"h100:{SHARDED[program]}")


@functools.cache
def solo(program, gpus):
    """The one process that stands for all ranks of a program of sharded.py."""
    (rank,) = run("sharded", program, gpus=f"h100:{gpus}", present=[0])
    assert rank.error is None, rank.error
    return rank


@pytest.mark.parametrize("program", SHARDED)
def test_torch_s_own_parallelism(program):
    ranks = everyone(program)
    assert [rank.error for rank in ranks] == [None] * len(ranks)
    for number, rank in enumerate(ranks):
        assert expected(program, number, rank.value), rank.value
        assert rank.busy.keys() >= COLLECTIVES[program], rank.busy
        assert 0 < rank.exposed < rank.seconds


def expected(program, rank, text):
    """Return True if a rank's output follows from the program."""
    if program in PEAKS:
        least, more = PEAKS[program]
        return least <= int(text.split()[-1]) - CUBLAS <= least + more
    if program == "pipelining":  # losses of 8 micro-batches, where the last stage is
        return text.splitlines() == [f"Schedule{name} {rank} {8 * (rank == (0 if vee else 1))}"
                                     for name, vee in SCHEDULES.items()]
    return text.endswith({
        "dtensor": f"{(2 * WIDTH, WIDTH)} {int(2 * LOCAL + CUBLAS)}\n",  # with gradients
        "meshes": f" {(4 * WIDTH // 2 // 2, WIDTH)}\n",  # between 2 tensor-parallel ranks, 2 shards
        "context": "(2, 64, 128, 64) (64,)\n"}[program])


def test_sharding_over_more_gpus_takes_less_memory():
    peaks = [int(solo("fsdp2", gpus).value.split()[-1]) for gpus in (1, 2, 4)]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > peaks[-1]


def test_cpu_offloading_trades_memory_for_copies_over_the_bus():
    plain, offloaded = solo("fsdp2", 2), solo("offload", 2)
    shard = 4 * (4 * 2 * 4 * 1024**2) // 2  # bytes of half of the weights in fp32
    assert plain.peak - offloaded.peak > 2 * shard
    # Each step copies the parameters up for the forward and the backward pass, the gradients down.
    seconds = 2 * 3 * shard / cards.find("h100").pcie
    copied = [sum(time for name, time in rank.busy.items() if name.endswith("copy_"))
              + rank.busy["aten._to_copy"] for rank in (plain, offloaded)]
    assert copied[1] - copied[0] == pytest.approx(seconds, rel=0.1)
    assert offloaded.seconds > plain.seconds
    assert any("an optimizer step on the CPU" in one.text for one in offloaded.assumptions)


@pytest.mark.parametrize("program", ["fsdp2", "dtensor", "zero"])
def test_one_process_stands_for_all_ranks_of_a_symmetric_program(program):
    first, alone = everyone(program)[0], solo(program, SHARDED[program])
    assert alone.seconds == pytest.approx(first.seconds, rel=1e-9)
    assert alone.peak == first.peak
