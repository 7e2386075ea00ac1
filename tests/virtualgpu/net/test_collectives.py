"""Rings, trees and links by hand, and what a network may be called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualgpu.core.cards import CARDS
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net import collectives, network
from virtualgpu.net.collectives import LAUNCH, CommunicationPath
from virtualgpu.net.nodes import NODES
from virtualgpu.net.topology import Topology

V100, A100, T4 = (CARDS[name] for name in ("v100-sxm2-16gb", "a100-80gb", "t4"))
MB = 10**6
NVLINK = 25e9 * V100.efficiency.link  # of one link, per direction
# Four ranks on one node, 1 GB/s; latencies left out, so that the bytes can be seen.
FLAT = CommunicationPath(size=4, nodes=1, bandwidth=1e9, near=0.0, far=0.0)


def test_a_ring_moves_each_part_past_every_rank():
    """Parts of S/4 travel 3 links to be gathered, 6 to be summed by all."""
    assert collectives.all_gather(FLAT, 100 * MB) - LAUNCH == pytest.approx(3 * 0.025)
    assert collectives.all_reduce(FLAT, 100 * MB) - LAUNCH == pytest.approx(6 * 0.025)
    assert collectives.broadcast(FLAT, 100 * MB) - LAUNCH == pytest.approx(0.1)
    assert collectives.message(FLAT, 100 * MB) - LAUNCH == pytest.approx(0.1)


def test_a_reduction_passes_a_chain_once():
    assert collectives.reduce(FLAT, 100 * MB) == collectives.broadcast(FLAT, 100 * MB)


def test_everything_gathered_passes_the_root_s_link():
    assert collectives.gather(FLAT, 100 * MB) - LAUNCH == pytest.approx(0.075)
    across = CommunicationPath(size=8, nodes=2, bandwidth=1e9, near=1e-3, far=2e-3)
    assert collectives.gather(across, 800 * MB) - LAUNCH == pytest.approx(0.7 + 2e-3)


def test_an_all_to_all_passes_each_link_once():
    """A rank keeps 1 of 4 parts; of 8 ranks on 2 nodes, 4 share the adapters and send half away."""
    assert collectives.all_to_all(FLAT, 100 * MB) - LAUNCH == pytest.approx(0.075)
    across = CommunicationPath(size=8, nodes=2, bandwidth=1e9, near=0.0, far=1e-3)
    assert collectives.all_to_all(across, 100 * MB) - LAUNCH == pytest.approx(0.2 + 1e-3)
    assert collectives.all_to_all(CommunicationPath(1, 1, 1e9, 1.0, 1.0), 100 * MB) == LAUNCH


def test_every_step_of_a_ring_has_its_latency():
    """Without bytes, only latency remains: 3 steps on 4 ranks; on 2 nodes, 2 of 4 links are far."""
    near = CommunicationPath(4, 1, 1e9, near=1e-3, far=1.0)
    assert collectives.all_gather(near, 0) - LAUNCH == pytest.approx(3e-3)
    assert collectives.all_reduce(near, 0) - LAUNCH == pytest.approx(6e-3)
    assert collectives.broadcast(near, 0) - LAUNCH == pytest.approx(3e-3)
    assert collectives.message(near, 0) - LAUNCH == pytest.approx(1e-3)
    far = CommunicationPath(4, 2, 1e9, near=0.0, far=1e-3)
    assert collectives.all_gather(far, 0) - LAUNCH == pytest.approx(3 * (2 / 4) * 1e-3)
    assert collectives.broadcast(far, 0) - LAUNCH == pytest.approx(1e-3)
    assert collectives.message(CommunicationPath(2, 2, 1e9, 0.0, 1e-3),
                               0) - LAUNCH == pytest.approx(1e-3)


def test_a_tree_needs_few_steps_between_nodes():
    """8 nodes are 3 deep: up and down 6 hops, where the ring has 2 x 7."""
    path = CommunicationPath(8, 8, 1e9, near=0.0, far=1e-3)
    assert collectives.tree(path, 0) - LAUNCH == pytest.approx(6e-3)
    assert collectives.ring(path, 0, 2) - LAUNCH == pytest.approx(14e-3)
    # Each node's link carries all bytes up and down; the ring's only 7/8 of it, twice.
    assert collectives.tree(path, 1000 * MB) - LAUNCH == pytest.approx(2.006)
    assert collectives.ring(path, 1000 * MB, 2) - LAUNCH == pytest.approx(1.75 + 14e-3)


def test_the_quicker_of_ring_and_tree_is_taken():
    path = CommunicationPath(8, 8, 1e9, near=0.0, far=1e-3)
    assert collectives.all_reduce(path, 1000) == collectives.tree(path, 1000)
    assert collectives.all_reduce(path, 1000 * MB) == collectives.ring(path, 1000 * MB, 2)
    assert [collectives.algorithm(path, size) for size in (1000, 1000 * MB)] == ["tree", "ring"]
    assert collectives.algorithm(FLAT, 1000) == "ring"  # no tree within a node


@given(st.integers(2, 64), st.integers(0, 2**33), st.integers(0, 2**33), st.floats(1e6, 1e12))
def test_more_bytes_never_travel_faster(ranks, one, other, bandwidth):
    small, large = sorted((one, other))
    for nodes in {1, ranks}:
        path = CommunicationPath(ranks, nodes, bandwidth, 1e-6, 1e-5)
        wider = CommunicationPath(ranks, nodes, 2 * bandwidth, 1e-6, 1e-5)
        for collective in (collectives.all_reduce, collectives.all_gather, collectives.broadcast,
                           collectives.reduce, collectives.gather, collectives.all_to_all,
                           collectives.message):
            assert LAUNCH <= collective(path, small) <= collective(path, large)
            assert collective(wider, large) <= collective(path, large)


def place(nodes, cards=None, link="ethernet:80gbit"):
    return Topology(tuple(nodes), tuple(cards or [V100] * len(nodes)), network.parse(link))


def wire(link="ethernet:80gbit"):
    return network.parse(link).effective


def test_a_path_within_a_node_has_the_links_of_its_gpus():
    path = place("aabb").path((2, 3))
    assert (path.size, path.nodes) == (2, 1)
    assert path.bandwidth == NVLINK  # GPUs 0 and 1 of a DGX-1


def test_a_path_between_nodes_is_the_network():
    path = place("aabb").path((0, 1, 2, 3))
    assert (path.size, path.nodes, path.bandwidth) == (4, 2, wire())


def test_a_node_s_adapters_are_shared_by_the_groups_that_leave_it():
    """Two tensor-parallel ranks per node: both their replicas' groups cross at the same time."""
    everyone = place("aabb")
    assert everyone.path((0, 2)).bandwidth == everyone.path((1, 3)).bandwidth == wire() / 2
    eight = place("a" * 8 + "b" * 8)
    assert eight.path((0, 8)).bandwidth == wire() / 8
    assert eight.path((0, 1, 2, 3, 8, 9, 10, 11)).bandwidth == wire() / 2
    assert eight.path(tuple(range(16))).bandwidth == wire()


def test_the_slowest_link_of_a_path_decides():
    quick = place("aabb", link="infiniband:8x800gbit")
    assert quick.path((0, 1, 2, 3)).bandwidth == NVLINK
    mixed = place("aa", [A100, V100])
    # No node has both, so NCCL would use the host's memory, between sockets.
    assert mixed.path((0, 1)).bandwidth == NODES["dgx-1"].interconnect
    uneven = place("aaab", link="ethernet:80gbit")  # 3 ranks here, 1 there: no other group like it
    assert uneven.path((0, 3)).bandwidth == wire()


def test_only_groups_that_cross_share_the_network():
    two = place("aabb", link="ethernet:80gbit")
    assert two.path((1, 2)).bandwidth == wire()  # a pipeline of four: its only pair that crosses
    assert two.path((0, 3)).bandwidth == wire()  # its ends
    assert two.path((0, 2)).bandwidth == wire() / 2  # beside (1, 3)
    assert two.path((0, 1, 2, 3)).bandwidth == wire()
    eights = place("a" * 8 + "b" * 8, link="ethernet:80gbit")
    assert eights.path((0, 8)).bandwidth == eights.path((3, 11)).bandwidth == wire() / 8


def test_a_rank_sends_through_one_adapter():
    link, adapter = "infiniband:8x100gbit", wire("infiniband:100gbit")
    full = place("a" * 8 + "b" * 8, link=link)
    assert full.p2p_path(7, 8).bandwidth == adapter  # neighbors of a pipeline; nobody else sends
    assert full.path((0, 8)).bandwidth == adapter
    assert full.path(tuple(range(16))).bandwidth == 8 * adapter
    one, two = place("ab", link=link), place("aabb", [A100] * 4, link)
    assert one.path((0, 1)).bandwidth == one.p2p_path(0, 1).bandwidth == adapter
    assert two.path((0, 1, 2, 3)).bandwidth == 2 * two.path((0, 2)).bandwidth == 2 * adapter


def test_few_adapters_are_shared():
    few = place("a" * 8 + "b" * 8, link="infiniband:4x200gbit")
    assert few.path((0, 8)).bandwidth == wire("infiniband:100gbit")
    assert few.p2p_path(7, 8).bandwidth == wire("infiniband:200gbit")


def test_links_in_words():
    assert place("aa").describe() == "within a node NVLink 25 GB/s"
    assert place("a" * 8).describe() == "within a node NVLink 150 GB/s"
    assert place("aab", link="infiniband:8x200gbit").describe() == (
        "within a node NVLink 25 GB/s, between nodes infiniband 8 x 200 Gbit/s")
    assert place("ab").describe() == "between nodes ethernet 80 Gbit/s"
    assert place("a").describe() == "none, with a single GPU"
    assert place("aabb", [A100, A100, T4, T4]).describe().startswith(
        "within a node NVLink 300 GB/s or shared memory 16 GB/s, ")


@pytest.mark.parametrize(("text", "bandwidth", "name"), [
    ("ethernet:25gbit", 25e9 / 8, "ethernet 25 Gbit/s"),
    ("25gbit", 25e9 / 8, "ethernet 25 Gbit/s"),
    ("Ethernet:100MBIT", 100e6 / 8, "ethernet 100 Mbit/s"),
    ("infiniband:8x200gbit", 200e9, "infiniband 8 x 200 Gbit/s"),
    ("2x2.5gbit", 5e9 / 8, "ethernet 2 x 2.5 Gbit/s"),
])
def test_networks(text, bandwidth, name):
    link = network.parse(text)
    assert (link.bandwidth, link.name) == (bandwidth, name)
    assert 0.5 < link.share <= 1 and link.effective == bandwidth * link.share


@pytest.mark.parametrize("text", [
    "", "ethernet", "ethernet:", "ethernet:25", "ethernet:25gb", "ethernet:0gbit", "0x25gbit",
    "token-ring:25gbit", "ethernet:-25gbit", "ethernet:25gbit ", "ethernet:1e3gbit", "x25gbit",
    "infiniband:8*200gbit", "ethernet:25gbit,infiniband:8x200gbit", "ethernet:infgbit",
])
def test_a_bad_network_is_refused_with_a_good_one(text):
    with pytest.raises(VirtualGpuError, match="such as ethernet:25gbit or infiniband:8x200gbit"
                       ) as error:
        network.parse(text)
    assert repr(text) in str(error.value)
