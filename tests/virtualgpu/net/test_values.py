"""Small tensors with known values carry them through every collective, as gloo's do."""

import pytest

from warmranks import run_ranks

from .programs import every_collective, on_cpu, on_gpus


@pytest.fixture(scope="module")
def results():
    """What each rank got on virtual GPUs, and over gloo."""
    return (run_ranks(on_gpus, 4, every_collective, backend=None, timeout=200),
            run_ranks(on_cpu, 4, every_collective, timeout=200))


@pytest.mark.slow
def test_every_collective_gives_gloo_s_values(results):
    for (virtual, _), (real, _) in zip(*results, strict=True):
        assert virtual.keys() == real.keys() and len(real) > 20
        for name, value in real.items():
            assert virtual[name] == value, name


@pytest.mark.slow
def test_every_rank_ends_at_a_time_of_its_own(results):
    assert all(time > 0 for _, time in results[0])
