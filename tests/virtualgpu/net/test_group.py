"""Virtual groups between real rank processes: clocks meet, streams overlap, messages keep their
order."""

import pytest

from virtualgpu.net import collectives, network
from virtualgpu.net.topology import Topology
from warmranks import run_ranks

from .group_steps import CARD, CASES, LATE, V100, run

TOPOLOGY = Topology(("a", "a", "b", "b"), (CARD,) * 4, network.parse("ethernet:10gbit"))
ALL, PAIR = TOPOLOGY.path((0, 1, 2, 3)), TOPOLOGY.path((0, 1))
RANKS = range(4)


@pytest.fixture(scope="module")
def results():
    """{case with its number: what each rank said}; the processes are started once."""
    result = zip(*run_ranks(run, 4, timeout=200), strict=True)
    return {f"{case.__name__}{number}": ranks
            for number, (case, ranks) in enumerate(zip(CASES, result, strict=True))}


@pytest.fixture
def of(results):
    def find(name):
        (result,) = [ranks for case, ranks in results.items() if case.rstrip("0123456789") == name]
        return result
    return find


def same(ranks, name):
    """Return the result, which all ranks agree on to the last bit."""
    first = ranks[0][name]
    assert all(rank[name] == first for rank in ranks)
    return first


@pytest.mark.slow
def test_the_slowest_rank_decides_for_all(of):
    each = collectives.all_reduce(ALL, 4 * 10**6)
    assert same(of("slowest"), "first") == max(LATE) + each
    assert same(of("slowest"), "second") == max(LATE) + each + each


def test_a_collective_overlaps_compute_and_compute_waits_where_told(of):
    ranks = of("overlap")
    end = 1.0 + collectives.all_reduce(ALL, 10**8)
    assert end > 1.01
    assert same(ranks, "before") == 1.01
    assert same(ranks, "spans") == [("compute", 0.0, 1.0), ("compute", 1.0, 1.01),
                                    ("all_reduce", 1.0, end), ("compute", end, end + 0.5)]
    assert same(ranks, "after") == end + 0.5


def test_a_group_s_collectives_run_one_after_another(of):
    small, large = (collectives.all_reduce(ALL, size) for size in (4 * 10**6, 8 * 10**6))
    ends = same(of("backlog"), "ends")
    assert ends == pytest.approx([small, small + large, small + large + small], rel=1e-12)
    assert same(of("backlog"), "last") == same(of("backlog"), "ready") == ends[2]


def test_messages_leave_one_after_another_and_never_overtake(of):
    sender, receiver, *_ = of("messages")
    large, small = (collectives.message(PAIR, size) for size in (4 * 10**7, 4))
    assert sender["ends"] == pytest.approx([large, large + small, 2.0 + small], rel=1e-12)
    assert sender["free"] == sender["ends"][2]
    assert receiver["ready"] == [max(end, 0.001) for end in sender["ends"]]


def test_messages_of_both_ways_pass_each_other(of):
    ranks, each = of("both_ways"), collectives.message(PAIR, 400)
    for rank in RANKS:
        assert ranks[rank]["ends"] == ranks[rank ^ 1]["sent"]
        assert ranks[rank]["sent"] == pytest.approx(
            [LATE[rank] + each * count for count in range(1, 21)], rel=1e-12)


def test_every_form_has_its_time(of):
    names, times = zip(*same(of("forms"), "spans"), strict=True)
    assert names == ("all_gather", "reduce_scatter", "broadcast", "barrier")
    assert times == pytest.approx((
        collectives.all_gather(ALL, 16000), collectives.all_gather(ALL, 16000),
        collectives.broadcast(ALL, 4000), collectives.all_reduce(ALL, 4)), rel=1e-9)


def test_control_traffic_carries_values_and_takes_no_virtual_time(of):
    ranks = of("control")
    assert same(ranks, "sum") == 10.0 and same(ranks, "time") == 0.0
    assert same(ranks, "told") == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert (same(ranks, "default"), same(ranks, "group")) == ("gloo", "virtual")


def test_others_do_not_wait_for_a_group_they_are_not_in(of):
    first, *_ = times = [rank["time"] for rank in of("subgroup")]
    assert (first, times[2]) == (LATE[0], LATE[2])
    assert times[1] == times[3] > max(LATE[1], LATE[3])


def test_buffers_take_memory_once(of):
    before, once, twice = same(of("buffers"), "taken")
    assert before == V100.context < once == twice


def test_a_soak_gives_the_same_digits_again(results):
    first, again = [ranks for case, ranks in results.items() if case.startswith("soak")]
    assert len(first[0]["times"]) == 120
    assert [rank["times"] for rank in first] == [rank["times"] for rank in again]
    assert not any(rank["back"] for rank in first + again)


def test_a_soak_leaves_nothing_in_the_store(results):
    """A hundred collectives and messages later the store holds what it held."""
    for case, ranks in results.items():
        if case.startswith("soak"):
            early, late = same(ranks, "keys")
            assert early == late
