"""The record of ranks' communication, and deadlocks of ranks that wait for each other."""

from __future__ import annotations

from collections import Counter

import pytest

from warmranks import CommunicationCall, RankError, RanksDeadlock, record_ranks, warnings_once

from . import steps

pytestmark = pytest.mark.slow


def test_sends_and_receives_have_peers_bytes_and_an_order():
    records = record_ranks(steps.around_the_ring, 3, 10)
    assert [one.value for one in records] == [[6.0] * 10] * 3
    for rank, one in enumerate(records):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        assert [(call.op, call.peer, call.bytes, call.group) for call in one.calls] == [
            ("send", right, 40, (0, 1, 2)), ("recv", left, 40, (0, 1, 2))] * 2
        assert one.flops == 0


def test_the_work_of_a_send_keeps_its_tensor():
    assert record_ranks(steps.keeps_what_it_sends, 2, None)[0].value == [True, False]


def test_every_collective_is_recorded_with_its_group_and_root():
    records = record_ranks(steps.calls_everything, 3)
    whole, one, world = 24, 8, (0, 1, 2)
    expected = [("all_reduce", None, one), ("broadcast", 1, one), ("reduce", 1, one),
                ("all_gather", None, one), ("all_gather", None, one),
                ("reduce_scatter", None, whole), ("reduce_scatter", None, whole),
                ("gather", 1, one), ("scatter", 1, whole), ("all_to_all", None, whole),
                ("barrier", None, 0)]
    for rank, record in enumerate(records):
        calls = [(call.op, call.peer, call.bytes) for call in record.calls[:len(expected)]]
        assert calls == [(op, peer, 0 if op == "scatter" and rank != 1 else size)
                         for op, peer, size in expected]
        assert all(call.group == world for call in record.calls[:len(expected)])
        assert all(call.finished == 0 for call in record.calls)
    in_pair, between = records[1].calls[len(expected):]
    assert (in_pair.op, in_pair.group) == ("all_reduce", (1, 2))
    assert (between.op, between.peer) == ("send", 2)
    assert records[2].calls[-1] == CommunicationCall("recv", world, None, one, 0.0, 0.0)
    assert len(records[0].calls) == len(expected)


def test_a_call_says_how_much_work_was_done_when_it_began_and_ended():
    (record, _), flops = record_ranks(steps.overlaps, 2, 16), 2 * 16**3
    (call,) = record.calls
    assert (call.started, call.finished, record.flops) == (flops, 2 * flops, 3 * flops)


@pytest.mark.slow
def test_torch_s_own_data_parallelism_is_recorded():
    first, second = record_ranks(steps.data_parallel, 2, 32)
    assert first.value == second.value
    reduced = [call for call in first.calls if call.op == "all_reduce"]
    assert sum(call.bytes for call in reduced) == 2 * 6 * 32 * 32 * 4
    assert len(reduced) > 6 and min(call.started for call in reduced[-6:]) < first.flops
    assert Counter(call.op for call in first.calls) == Counter(call.op for call in second.calls)


@pytest.mark.parametrize("function, arguments, ranks, lines", [
    (steps.deadlocks, (), 3, ["ranks 0 and 1 of 3 wait for ranks that never respond",
                              "rank 0 waits in recv from rank 1", "rank 2 returned",
                              "dist.recv(torch.empty(1), 1 - dist.get_rank())"]),
    (steps.skips_a_collective, (1,), 3, ["rank 0 waits in all_reduce with ranks 0, 1, 2",
                                         "rank 1 returned", "rank 2 waits in all_reduce"])])
def test_a_deadlock_says_who_waits_for_whom_and_where(function, arguments, ranks, lines):
    with pytest.raises(RanksDeadlock) as caught:
        record_ranks(function, ranks, *arguments)
    for line in lines:
        assert line in str(caught.value)
    assert "code/warmranks/" not in str(caught.value)


@pytest.mark.parametrize("function", [steps.waits_for_a_slow_rank, steps.waits_for_a_busy_rank])
def test_a_slow_rank_is_no_deadlock(function):
    assert [one.value for one in record_ranks(function, 3, 1.5)] == [0, 1, 2]


@pytest.mark.parametrize("arguments", [(), ("gloo",), ("gloo", "env://")])
def test_ranks_join_again_by_themselves(arguments):
    records = record_ranks(steps.joins_again, 2, *arguments)
    assert [one.value for one in records] == [(0, 2, 3.0), (1, 2, 3.0)]
    assert [call.op for call in records[0].calls] == ["all_reduce"]


@pytest.mark.parametrize(("arguments", "keywords", "error"), [
    (("nccl",), {}, "RuntimeError: ProcessGroupNCCL is only supported with GPUs"),
    (("mpi",), {}, "ValueError: backend='mpi': these ranks communicate with gloo"),
    (("gloo",), {"rank": 0, "world_size": 3}, "ValueError: rank=0, world_size=3: this is rank ")])
def test_a_way_to_join_in_which_no_rank_meets_another_is_refused(arguments, keywords, error):
    with pytest.raises(RankError, match=error):
        record_ranks(steps.joins_again, 2, *arguments, keywords=keywords)


def test_an_exception_is_the_rank_s_own():
    with pytest.raises(RankError, match="rank 1 of 3 raised ValueError: no rank 1") as caught:
        record_ranks(steps.raises, 3, 1)
    assert caught.value.rank == 1 and "recording.py" not in str(caught.value)


def test_a_warning_of_every_rank_is_printed_once(capsys):
    """torch warns on every rank of a model whose parameters are broadcast without detach()."""
    warnings_once._shown.clear()
    for _ in range(2):
        record_ranks(steps.warns_and_prints, 3)
    printed = capsys.readouterr().err
    assert printed.count("UserWarning: the sum is None") == 1
    assert printed.count("an autograd kernel was not registered") <= 1
    assert sorted(line for line in printed.splitlines() if line.startswith("rank")) == [
        "rank 0", "rank 0", "rank 1", "rank 1", "rank 2", "rank 2"]
