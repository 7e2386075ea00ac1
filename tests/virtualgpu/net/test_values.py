"""Small tensors with known values carry them through every collective, as gloo's do."""

import pytest

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
