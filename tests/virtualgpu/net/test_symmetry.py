"""One rank that stands for many: the same time and memory as if all were there, to the last bit."""

import pytest
import torch.distributed as dist

from virtualgpu.core.cards import find
from virtualgpu.net import collectives, network
from virtualgpu.net.topology import Topology
from warmranks import load, run_ranks

from .parallel import RANKS, SYMMETRIC, WIDTH, books, one_stage_each, stages, symmetric

STEPS, LAYERS = 2, 3
UP = DOWN = 4 * WIDTH * WIDTH  # elements
BLOCK = UP + 4 * WIDTH + DOWN + WIDTH + 2 * WIDTH
MODEL, LARGER = 4 * LAYERS * BLOCK, 4 * RANKS * BLOCK  # bytes of the parameters in fp32
HALF = UP // 2 + 2 * WIDTH + DOWN // 2 + 3 * WIDTH  # of a block between two tensor-parallel ranks
X = 4 * 64 * WIDTH  # bytes of a rank's samples
# DDP fills buckets from the last parameter: a first one of up to 1 MiB, others up to its limit.
BUCKETS = [4 * (DOWN + WIDTH), *[4 * (UP + 4 * WIDTH), 4 * (DOWN + 3 * WIDTH)] * 2,
           4 * (UP + 4 * WIDTH), 8 * WIDTH]
ZERO_BUCKETS = [4 * (DOWN + WIDTH), LARGER - 4 * (DOWN + 3 * WIDTH), 8 * WIDTH]
TIMES = STEPS * LAYERS
# The ranks of a group and the bytes of each collective. Before it rebuilds its buckets, DDP has one
# for everything. FSDP gathers a block for each pass, forward and backward.
BY_HAND = {
    "ddp": {"all_reduce": [(RANKS, MODEL), *((RANKS, size) for size in BUCKETS)]},
    "zero": {"all_reduce": [(RANKS, LARGER), *((RANKS, size) for size in ZERO_BUCKETS)]},
    "fsdp1": {"all_gather": 2 * TIMES * [(RANKS, 4 * BLOCK)],
              "reduce_scatter": TIMES * [(RANKS, 4 * BLOCK)]},
    "fsdp2": {"all_gather": 2 * TIMES * [(RANKS, 2 * BLOCK)],
              "reduce_scatter": TIMES * [(RANKS, 4 * BLOCK)]},
    "hsdp": {"all_gather": 2 * TIMES * [(2, 2 * BLOCK)], "reduce_scatter": TIMES * [(2, 4 * BLOCK)],
             "all_reduce": TIMES * [(2, 2 * BLOCK)]},
    "tensor_and_sequence": {name: 2 * TIMES * [(RANKS, RANKS * X)]
                            for name in ("all_gather", "reduce_scatter")},
    "two_dimensions": {
        "all_gather": 2 * TIMES * [(2, 4 * HALF), (2, 2 * X)],
        "reduce_scatter": TIMES * [(2, 4 * HALF), (2, 2 * X), (2, 2 * X)]},
    "resharded": {"all_to_all": [(RANKS, X // RANKS)], "all_gather": [(RANKS, X)],
                  "scatter": [(RANKS, X)]}}
# Bytes that stay between steps (parameters, gradients, and two states of Adam, or a rank's part of
# them; DDP's buckets), and how many bytes come on top at most.
PEAKS = {
    "ddp": (5 * MODEL, MODEL + X), "zero": (3 * LARGER + 2 * LARGER // RANKS, LARGER),
    **dict.fromkeys(("fsdp1", "fsdp2"), (MODEL, 4 * 4 * BLOCK)), "hsdp": (2 * MODEL, 16 * BLOCK),
    "tensor_and_sequence": (MODEL, 16 * BLOCK), "two_dimensions": (MODEL, 16 * BLOCK),
    "resharded": (2 * X // RANKS, 3 * X)}


@pytest.fixture(scope="module")
def run():
    """run_ranks on a server that has imported what all these ranks need."""
    load("tests.virtualgpu.net.parallel")
    return lambda function, ranks, *arguments: run_ranks(
        function, ranks, *arguments, backend=None, timeout=300)


@pytest.mark.slow
def test_one_rank_for_all_equals_all_ranks(run):
    everyone = run(symmetric, RANKS, None)
    (alone,) = run(symmetric, 1, [0])
    assert list(alone) == [program.__name__ for program in SYMMETRIC]
    for name, figures in alone.items():
        assert everyone[0][name] == figures, name
        check(name, *figures)


CUBLAS = 65 * 2**20  # workspaces of the forward and of the backward pass


def check(name, seconds, exposed, peak, communication):
    """Compare a program's figures with those computed by hand."""
    assert 0 < exposed < seconds and exposed <= sum(communication.values()), name
    card = find("h100")
    topology = Topology(("a",) * RANKS, (card,) * RANKS, network.parse("ethernet:10gbit"))
    for collective, sizes in BY_HAND[name].items():
        cost, _ = collectives.COSTS[collective]
        expected = sum(cost(topology.path(tuple(range(ranks))), size) for ranks, size in sizes)
        assert communication[collective] == pytest.approx(expected, rel=1e-9), (name, collective)
    least, more = PEAKS[name]
    workspaces = CUBLAS if name == SYMMETRIC[0].__name__ else 0  # which the others find
    assert least <= peak - workspaces <= least + more, name


@pytest.mark.stress
def test_one_rank_per_stage_equals_all_ranks(run):
    everyone = run(stages, RANKS, None)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    present = run(one_stage_each, 2, store.port)
    assert everyone[0] != everyone[2]  # the stages differ
    assert present == [everyone[0], everyone[2]]


@pytest.mark.slow
def test_results_of_functional_collectives_lie_in_memory_until_they_are_dropped(run):
    (result,) = run(books, 1, [0])
    assert result == {"all_gather": [16, 16, 0], "reduce_scatter": [1, 1, 0],
                      "all_reduce": [4, 4, 0], "all_to_all": [4, 4, 0], "broadcast": [4, 4, 0],
                      "left to itself": 0}
