"""A record, priced elsewhere, gives exactly the figures that the run itself gave."""

from __future__ import annotations

import pytest
import torch

import virtualgpu
from virtualgpu.core import workspaces
from virtualgpu.launch.result import Rank
from virtualgpu.replay import BadRecord, Priced

from . import programs
from .recorded import by_hand, priced, run, texts

pytestmark = pytest.mark.slow  # ranks that run whole programs


def equal(one: Priced, rank: Rank) -> None:
    assert one.seconds == rank.seconds > 0
    assert one.exposed_compute == rank.exposed
    assert one.busy == rank.busy
    assert (one.peak, one.reserved) == (rank.peak, rank.reserved)
    assert one.unknown == rank.unknown


@pytest.mark.parametrize(("program", "gpus", "nodes"), [
    (programs.streams, "h100", 1), (programs.ddp, "a100:2", 1), (programs.pipeline, "h100:2", 2),
    (programs.collectives, "h100:2", 2), (programs.sharded, "h100:2", 1),
    (programs.ddp, "v100:4", 2)])
def test_the_price_is_what_the_run_said(program, gpus, nodes):
    result = run(program, gpus, nodes)
    for one, rank in zip(priced(texts(result), gpus, nodes), result, strict=True):
        equal(one, rank)
    if program is programs.ddp:
        assert all(rank.exposed > 0 for rank in result)


def test_ranks_that_others_stand_for():
    """One process that stands for 64 ranks is priced as it said, and 2 of 2 cost the same."""
    result = run(programs.ddp, "a100:8", 8, (0,))
    equal(*priced(texts(result), "a100:8", 8), *result)
    alone, both = run(programs.ddp, present=(0,)), run(programs.ddp)
    assert priced(texts(alone))[0].seconds == priced(texts(both))[0].seconds


def test_other_gpus_and_links_than_those_of_the_run():
    """A record has no times in it, so it can be priced on anything."""
    recorded = texts(run(programs.ddp))
    for gpus, nodes in (("h100:2", 1), ("v100:1", 2)):
        assert priced(recorded, gpus, nodes)[0].seconds == run(
            programs.ddp, gpus, nodes)[0].seconds


def test_sums():
    """Two steps of four linear layers: 3 GEMMs per layer but for the first one's input."""
    rank = priced(texts(run(programs.ddp)))[0]
    gemm = 2 * programs.ROWS * programs.WIDTH**2
    assert rank.flops == 2 * (3 * 4 - 1) * gemm
    parameters = 4 * 4 * (programs.WIDTH**2 + programs.WIDTH)
    # Gradients are all-reduced in both steps; DDP broadcasts the parameters and some metadata.
    assert 3 * parameters < rank.communicated < 3 * parameters + 1024
    # Parameters, gradients, and DDP's buckets; two activations, the loss, and its gradient;
    # cuBLAS's workspaces of the forward and of the backward pass.
    assert rank.live == (3 * parameters + 2 * 4 * programs.ROWS * programs.WIDTH + 2 * 4
                         + 2 * workspaces.DEFAULT)


def test_copies_to_pinned_memory_are_told_from_others():
    def program() -> None:
        x = torch.empty(1000, device="cuda")
        torch.empty(1000, pin_memory=True).copy_(x, non_blocking=True)
        x[:100].to("cpu", non_blocking=True)  # into memory that PyTorch pins
        torch.empty(1000, pin_memory=True)[:30].copy_(x[:30])  # the host waits
        torch.empty(7).copy_(x[:7], non_blocking=True)
        x[:2].cpu()

    (rank,) = priced(texts(run(program, "h100", 1)), "h100", 1)
    assert rank.downloaded == {"pinned": 4 * 1100, "pageable": 4 * 39}


def collective(what: str, size: int = 4) -> list:
    return ["c", 0, "all_reduce", what, 0, [0, 0, size], [0, 0, size], []]


RECEIVE, SEND = ["q", 0, 1, [0, 0, 8]], ["p", 0, 1, 0, [0, 0, 8]]
RECEIVE_1, SEND_1 = ["q", 0, 0, [0, 0, 8]], ["p", 0, 0, 0, [0, 0, 8]]
A, T0, T1 = ["a", 8], ["t", 0], ["t", 1]


@pytest.mark.parametrize(("first", "second", "message"), [
    ([A, RECEIVE, T0, SEND, T1], [A, RECEIVE_1, T0, SEND_1, T1],
     "deadlock: no rank can make progress: rank 0, entry 2: waits for the receive .* until rank 1 "
     "comes that far; rank 1, entry 2: waits for the receive"),
    ([A, collective("one"), T0], [A], "rank 0, entry 2: waits for the all_reduce .* rank 1"),
    ([A, collective("one"), T0], [A, collective("two"), T0],
     "rank 0, entry 1: calls one, and rank 1, entry 1: calls two"),
    ([A, SEND, T0], [A], "rank 0, entry 1: sends 8 bytes to rank 1, which never receives"),
    ([A, SEND, T0], [A, ["q", 0, 0, [0, 0, 4]], T0], "receives 4 bytes, and rank 0, entry 1"),
    ([A, collective("one")], [A, collective("one"), T0], "communication 0 .* never completed"),
    ([A, collective("a", 4), T0], [A, ["c", 0, "all_reduce", "a", 0, [0, 0, 4], [0, 0, 8], []], T0],
     "4 bytes in and 8 bytes out"),
], ids=["cycle", "missing", "different", "unheard", "sizes", "unfinished", "in-and-out"])
def test_ranks_that_do_not_match(first, second, message):
    with pytest.raises(BadRecord, match=message):
        priced([by_hand(0, *first), by_hand(1, *second)])


def inverse() -> None:
    torch.cholesky_inverse(torch.eye(4, device="cuda"))


def test_an_operation_without_a_rule_is_not_recorded():
    """The program learns it where it stands, not from a refused record."""
    (rank,) = virtualgpu.run(inverse, "a100:1", record=True)
    assert "no operation aten.cholesky_inverse is in the list" in rank.error
    assert "Write this step with more common operations" in rank.error
    (rank,) = virtualgpu.run(inverse, "a100:1")
    assert rank.error is None
