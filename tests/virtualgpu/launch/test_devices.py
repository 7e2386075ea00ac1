"""A process has one GPU of its node: what programs ask for by index."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import virtualgpu
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

WAYS = {"to": lambda device: torch.ones(2).to(device), "cuda": lambda device: torch.ones(2).cuda(
    device), "factory": lambda device: torch.ones(2, device=device),
    "module": lambda device: nn.Linear(2, 2).to(device),
    "module.cuda": lambda device: nn.Linear(2, 2).cuda(device),
    "set_device": lambda device: torch.cuda.set_device(device) or device,
    "with device": lambda device: torch.cuda.device(device)}


@pytest.mark.parametrize("gpus", [1, 2])
def test_another_gpu_is_refused(gpus):
    def program():
        errors = {}
        for name, way in WAYS.items():
            assert way("cuda:0") is not None and way(0) is not None
            try:
                way("cuda:1")
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
        return errors

    (rank,) = run_ranks(parse(f"h100:{gpus}"), Settings(), program, [0])
    assert rank.error is None and rank.value.keys() == WAYS.keys()
    for error in rank.value.values():
        if gpus == 1:
            assert error.startswith("AcceleratorError: CUDA error: invalid device ordinal")
        else:
            assert "uses cuda:1, but this process has cuda:0 only" in error


@pytest.mark.parametrize("chosen_by", ["set_device", "mesh"])
def test_every_process_begins_on_gpu_0_until_it_or_a_device_mesh_chooses(chosen_by):
    def program():
        dist.init_process_group("nccl")
        begin = torch.cuda.current_device(), torch.cuda.is_initialized()
        with torch.cuda.device(dist.get_rank()):
            inside = torch.cuda.current_device()
        after = torch.cuda.current_device()
        if chosen_by == "set_device":
            torch.cuda.set_device(dist.get_rank())
        else:
            dist.init_device_mesh("cuda", (2,))
        return begin, inside, after, torch.cuda.current_device(), torch.cuda.is_initialized()

    for rank in run_ranks(parse("h100:2"), Settings(), program):
        assert rank.error is None, rank.error
        assert rank.value == ((0, False), rank.rank, 0, rank.rank, True)


def test_a_share_of_the_memory_is_refused_and_utilization_is_modeled():
    def program():
        x = torch.ones(4096, 4096, device="cuda")
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()
        busy = torch.cuda.utilization()
        time.sleep(10 * time.perf_counter())
        torch.cuda.set_per_process_memory_fraction(1.0)
        try:
            torch.cuda.set_per_process_memory_fraction(0.5)
        except virtualgpu.VirtualGpuError as error:
            return busy, torch.cuda.utilization(), str(error)

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    busy, idle, refused = rank.value
    assert busy > 90 and idle == 0 and "memory_fraction(0.5) is not modeled" in refused


def test_memory_statistics_of_both_pools():
    def program():
        kept = torch.ones(2**20, device="cuda"), torch.ones(3, device="cuda")
        del kept
        torch.ones(5, device="cuda")
        return torch.cuda.memory_stats()

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    for pool, figures in {
            "large_pool": (0, 2**22, 2**22, 2**22), "small_pool": (0, 512, 1024, 1024),
            "all": (0, 2**22 + 512, 2**22 + 1024, 2**22 + 1024)}.items():
        assert figures == tuple(rank.value[f"allocated_bytes.{pool}.{what}"]
                                for what in ("current", "peak", "allocated", "freed"))
    assert rank.value["allocation.all.allocated"] == 3
    assert rank.value["requested_bytes.small_pool.peak"] == 20


def test_moves_keep_the_memory_format():
    def program():
        x = torch.rand(2, 3, 4, 5)
        there = x.cuda(memory_format=torch.channels_last)
        back = there.cpu(memory_format=torch.contiguous_format)
        assert torch.equal(back, x)
        return there.stride(), back.stride()

    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    like = torch.empty(2, 3, 4, 5)
    assert rank.value == (like.to(memory_format=torch.channels_last).stride(), like.stride())


def test_nodes_may_have_different_gpus():
    """Each rank computes at its own GPU's speed, and the faster one waits in the all-reduce."""
    def program():
        dist.init_process_group("nccl")
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        begin = time.perf_counter()
        a = a @ a
        torch.cuda.synchronize()
        alone = time.perf_counter() - begin
        dist.all_reduce(a)
        torch.cuda.synchronize()
        return torch.cuda.get_device_name(), alone, time.perf_counter() - begin

    (fast, quick, end), (slow, long, other) = [
        rank.value for rank in run_ranks(parse("a100:1,a10:1"), Settings(), program)]
    assert "A100" in fast and slow == "NVIDIA A10" and quick < long / 2 and end == other > long
    two, one = parse("a100:2x2,a10:2"), parse("a100:1x1,a10:1")
    assert (two.world, two.nodes, two.card_of(3).name, two.card_of(4).name) == (
        6, 3, "a100-80gb", "a10")
    assert one.link == parse("a10").link != parse("a100").link  # the slowest
    mirrored = run_ranks(parse("a100:1x2,a10:1x2"), Settings(), program, [0, 2])
    assert [rank.value[0] for rank in mirrored] == [fast, slow]
