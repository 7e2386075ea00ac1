"""The lines of NCCL_DEBUG=INFO, by hand."""

import os
import re

import pytest

from virtualgpu.core import slots
from virtualgpu.core.cards import CARDS
from virtualgpu.net import nccl, network
from virtualgpu.net.nccl import buffer_bytes, channels_of
from virtualgpu.net.topology import Topology

V100, T4, A10, RTX3090, H100 = (
    CARDS[name] for name in ("v100-sxm2-16gb", "t4", "a10", "rtx3090", "h100-80gb"))


def place(nodes, cards=None, link="ethernet:25gbit", slots=()):
    return Topology(tuple(nodes), tuple(cards or [V100] * len(nodes)), network.parse(link), slots)


def texts(topology, ranks, me, channels=2):
    """The lines without what comes before NCCL INFO."""
    return [line.partition(" NCCL INFO ")[2] for line in
            nccl.lines(topology, ranks, me, channels)]


def test_two_nodes_of_two_cards():
    two = place(["slurmnode1", "slurmnode1", "slurmnode2", "slurmnode2"])
    assert texts(two, [0, 1, 2, 3], 0) == [
        "virtual v100-sxm2-16gb: a modeled communicator of the job's rank(s) 0,1,2,3",
        "Channel 00/02 :    0    1    2    3",
        "Channel 01/02 :    0    1    2    3",
        "Channel 00 : 3[1c000] -> 0[1b000] [receive] via NET/Socket/0",
        "Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC",
        "Channel 01 : 3[1c000] -> 0[1b000] [receive] via NET/Socket/0",
        "Channel 01 : 0[1b000] -> 1[1c000] via P2P/IPC",
        "Connected all rings"]
    assert texts(two, [0, 1, 2, 3], 1, channels=1) == [
        "virtual v100-sxm2-16gb: a modeled communicator of the job's rank(s) 0,1,2,3",
        "Channel 00 : 1[1c000] -> 2[1b000] [send] via NET/Socket/0",
        "Connected all rings"]


def test_every_line_names_the_node_the_process_and_its_card():
    two = place(["slurmnode1", "slurmnode1", "slurmnode2", "slurmnode2"])
    for line in nccl.lines(two, [1, 3], 1, 2):
        assert re.match(rf"slurmnode2:{os.getpid()}:\d+ \[1\] NCCL INFO [VCv]", line)


@pytest.mark.parametrize(("nodes", "ranks", "order"), [
    ("aabb", [0, 1, 2, 3], [0, 1, 2, 3]),
    ("abab", [0, 1, 2, 3], [0, 2, 1, 3]),  # a node's ranks are neighbors
    ("aabb", [1, 3], [0, 1]),  # numbered anew
])
def test_the_ring_s_order(nodes, ranks, order):
    assert place(nodes).rings(ranks) == [order]


@pytest.mark.parametrize("nodes", ["aabb", "abab", "abcabc", "aaaa"])
def test_the_hops_of_all_ranks_are_one_ring(nodes):
    """Each rank sends once, receives once, and one gets around."""
    topology, ranks = place(nodes), list(range(len(nodes)))
    following = {}
    for me in ranks:
        for line in texts(topology, ranks, me, 1):
            match = re.fullmatch(r"Channel 00 : (\d)\[\w+\] -> (\d)\[\w+\](.*) via (\S+)", line)
            if match and "[receive]" not in match[3]:
                following[int(match[1])] = int(match[2])
                far = nodes[int(match[1])] != nodes[int(match[2])]
                assert (match[4], match[3]) == (
                    ("NET/Socket/0", " [send]") if far else ("P2P/IPC", ""))
    at, seen = 0, []
    while at not in seen:
        seen.append(at)
        at = following[at]
    assert at == 0 and sorted(seen) == ranks == sorted(following)


@pytest.mark.parametrize(("cards", "via"), [
    ([V100, V100], "P2P/IPC"), ([A10, A10], "P2P/IPC"), ([T4, T4], "SHM/direct/direct"),
    ([RTX3090, RTX3090], "SHM/direct/direct"), ([V100, RTX3090], "SHM/direct/direct")])
def test_cards_of_a_node_reach_each_other_as_they_can(cards, via):
    assert nccl.transport(place("aa", cards), 0, 1) == via


@pytest.mark.parametrize(("slots", "via"), [
    ((0, 1), "P2P/IPC"), ((1, 2), "SHM/direct/direct"), ((3, 4), "SHM/direct/direct")])
def test_p2p_stays_below_a_pcie_switch(slots, via):
    """NCCL's default on Intel CPUs."""
    assert nccl.transport(place("aa", [A10, A10], slots=slots), 0, 1) == via


def test_the_kind_of_network():
    assert nccl.transport(place("ab"), 0, 1) == "NET/Socket/0"
    assert nccl.transport(place("ab", link="infiniband:4x100gbit"), 0, 1) == "NET/IB/0"


def test_a_job_s_cards_are_where_slurm_put_them():
    given = place("aa", slots=(2, 3))
    assert "Channel 00 : 0[1d000] -> 1[1e000] via P2P/IPC" in texts(given, [0, 1], 0)
    half = place("aa", slots=(None, 1))
    assert "Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC" in texts(half, [0, 1], 0)


@pytest.mark.parametrize(("text", "index", "number"), [
    ("0,1", 1, 1), ("3", 0, 3), ("2, 5", 1, 5), ("3", 1, None), ("", 0, None),
    ("NoDevFiles", 0, None), ("GPU-76697274", 0, None), ("-1", 0, None), ("0,1", -1, None)])
def test_which_card_a_process_sees(text, index, number):
    assert slots.visible(text, index) == number


def test_a_communicator_has_two_channels_for_each_adapter():
    """And between nodes no more than within one."""
    eights = place("a" * 8 + "b" * 8, [H100] * 16, "infiniband:8x400gbit")
    within, across = eights.path(range(8)), eights.path(range(16))
    assert channels_of(H100, within) == channels_of(H100, across) == 16
    assert buffer_bytes(H100, within) == buffer_bytes(H100, across) == 160 * 2**20
    assert channels_of(H100, eights.path((0, 8))) == 2  # one rank per node: one adapter
    assert channels_of(H100, eights.path((0, 1, 8, 9))) == 4
    one = place("a" * 8 + "b" * 8, [H100] * 16, "ethernet:100gbit")
    assert channels_of(H100, one.path(range(16))) == 2
    slow = place("aabb", [T4] * 4, "infiniband:2x100gbit")
    assert channels_of(T4, slow.path(range(2))) == channels_of(T4, slow.path(range(4))) == 2
