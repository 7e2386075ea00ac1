"""Small tensors with known values carry them through every collective, as gloo's do."""

import pytest
import torch.distributed as dist

import virtualgpu
from warmranks import run_ranks

from .programs import every_collective, on_cpu, on_gpus

RANKS = 4


@pytest.fixture(scope="module")
def virtual():
    """Return each rank's results on its virtual GPU, and from CPU tensors of the same group."""
    return run_ranks(on_gpus, RANKS, every_collective, backend=None, timeout=200)


@pytest.mark.slow
def test_every_collective_gives_gloo_s_values(virtual):
    real = run_ranks(on_cpu, RANKS, every_collective, timeout=200)
    assert all(len(one) == len(real[0]) > 20 for one in real)
    assert real[0]["all_reduce RedOpType.SUM"] == [[10.0, 14.0, 18.0], [22.0, 26.0, 10.0]]
    for (found, _), expected in zip(virtual, real, strict=True):
        for values in found:
            assert values == expected


@pytest.mark.slow
def test_what_gloo_lacks(virtual):
    for rank, (_, found) in enumerate(virtual):
        exchanged = [[10.0 * source + rank] * (source + 1) for source in range(RANKS)]
        for values in found:
            assert values == ([2.5, 3.5, 4.5], [5.0, 7.0, 9.0], exchanged)


def objects():
    """What every collective of objects gives rank 1, where an object is larger than 1 MiB."""
    dist.init_process_group("nccl")
    rank, everyone = dist.get_rank(), [None, None]
    mine = {"rank": rank, "large": bytes(2**21)}
    dist.all_gather_object(everyone, mine)
    dist.gather_object(mine, gathered := [None, None] if rank else None, dst=1)
    dist.broadcast_object_list(told := [mine], src=0)
    dist.scatter_object_list(given := [None], everyone if rank == 0 else None, src=0)
    if rank:
        dist.recv_object_list(received := [None], 0)
        return [[len(one["large"]), one["rank"]]
                for one in (*everyone, *gathered, *told, *given, *received)]
    dist.send_object_list([mine], 1)


@pytest.mark.parametrize("values", ["none", "1MiB"])
def test_objects_arrive_whatever_their_size_and_the_computed_values(values):
    ranks = virtualgpu.run(objects, "h100:2", values=values)
    assert not any(rank.error for rank in ranks)
    assert ranks[1].value == [[2**21, rank] for rank in (0, 1, 0, 1, 0, 1, 0)]
