"""Distributed programs as people write them run unmodified."""

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


@pytest.mark.parametrize("program", SHARDED)
def test_torch_s_own_parallelism(program):
    texts = printed("sharded", program, gpus=f"h100:{SHARDED[program]}")
    assert all(texts), texts


def test_sharding_over_more_gpus_takes_less_memory():
    peaks = []
    for gpus in (1, 2, 4):
        (text,) = printed("sharded", "fsdp2", gpus=f"h100:{gpus}", present=[0])
        peaks.append(int(text.split()[-1]))
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > peaks[-1]


def test_cpu_offloading_trades_memory_for_copies_over_the_bus():
    (plain,), (offloaded,) = (run("sharded", program, gpus="h100:2", present=[0])
                              for program in ("fsdp2", "offload"))
    assert plain.error is offloaded.error is None
    shard = 4 * (4 * 2 * 4 * 1024**2) // 2  # bytes of half of the weights in fp32
    assert plain.peak - offloaded.peak > 2 * shard
    # Each step copies the parameters up for the forward and the backward pass, the gradients down.
    seconds = 2 * 3 * shard / cards.find("h100").pcie
    copied = [sum(time for name, time in rank.busy.items() if name.endswith("copy_"))
              + rank.busy["aten._to_copy"] for rank in (plain, offloaded)]
    assert copied[1] - copied[0] == pytest.approx(seconds, rel=0.1)
    assert offloaded.seconds > plain.seconds
    assert any("an optimizer's on parameters" in one.text for one in offloaded.assumptions)


@pytest.mark.parametrize("program", ["fsdp2", "dtensor", "zero"])
def test_one_process_stands_for_all_ranks_of_a_symmetric_program(program):
    all_ranks = run("sharded", program, gpus="h100:2")
    (solo,) = run("sharded", program, gpus="h100:2", present=[0])
    assert solo.error is None
    assert solo.seconds == pytest.approx(all_ranks[0].seconds, rel=1e-9)
    assert solo.peak == all_ranks[0].peak
