"""One rank that stands for many: the same time and memory as if all were there, to the last bit."""

import pytest
import torch.distributed as dist

from warmranks import ForkServer

from .parallel import RANKS, SYMMETRIC, books, one_stage_each, stages, symmetric


@pytest.fixture(scope="module")
def run():
    """run_ranks of a server that has imported what all these ranks need."""
    with ForkServer(["torch._dynamo", "tests.virtualgpu.net.parallel"]) as server:
        yield lambda function, ranks, *arguments: server.run_ranks(
            function, ranks, *arguments, backend=None, timeout=300)


@pytest.mark.slow
def test_one_rank_for_all_equals_all_ranks(run):
    everyone = run(symmetric, RANKS, None)
    (alone,) = run(symmetric, 1, [0])
    assert list(alone) == [program.__name__ for program in SYMMETRIC]
    for name, figures in alone.items():
        seconds, exposed, peak = figures
        assert 0 < exposed < seconds and peak > 0, name
        assert everyone[0][name] == figures, name


@pytest.mark.stress
def test_one_rank_per_stage_equals_all_ranks(run):
    everyone = run(stages, RANKS, None)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    present = run(one_stage_each, 2, store.port)
    assert everyone[0] != everyone[2]  # the stages differ
    assert present == [everyone[0], everyone[2]]


@pytest.mark.slow
def test_results_of_functional_collectives_lie_in_memory_until_they_are_dropped(run):
    (found,) = run(books, 1, [0])
    assert found == {"all_gather": [16, 16, 0], "reduce_scatter": [1, 1, 0],
                     "all_reduce": [4, 4, 0], "all_to_all": [4, 4, 0], "broadcast": [4, 4, 0],
                     "left to itself": 0}
