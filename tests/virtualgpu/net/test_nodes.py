"""The topologies of real nodes, and what rings and sends reach in them."""

from itertools import combinations

import pytest

from virtualgpu.core.cards import CARDS
from virtualgpu.net import collectives, intranode, network, nodes
from virtualgpu.net.intranode import GpuSlot
from virtualgpu.net.network import Link
from virtualgpu.net.nodes import CUBE_MESH, NODES
from virtualgpu.net.topology import Topology

V100, V100_PCIE, A100, H100, H100_PCIE, T4, RTX3090 = (CARDS[name] for name in (
    "v100-sxm2-16gb", "v100-pcie-16gb", "a100-80gb", "h100-80gb", "h100-pcie-80gb", "t4",
    "rtx3090"))
NVLINK = 25e9 * V100.efficiency.link


def job(card, slots):
    """A job's ranks on these GPUs of one node."""
    return Topology(("a",) * len(slots), (card,) * len(slots), network.parse("ethernet:25gbit"),
                    tuple(slots))


def reached(card, *slots):
    return job(card, slots).path(range(len(slots))).bandwidth


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_every_gpu_model_has_a_node(card):
    node = NODES[card.node]
    assert bool(node.nvlinks) == bool(card.nvlink)
    if card.nvlink:
        assert card.nvlink / node.nvlinks == (50e9 if card.name == "b200" else 25e9)


def test_every_gpu_of_the_mesh_has_six_nvlinks():
    """And a quad's GPUs reach each other, and one GPU of the other quad, directly."""
    links = [[count for pair, count in CUBE_MESH.items() if gpu in pair] for gpu in range(8)]
    assert [sum(counts) for counts in links] == [6] * 8
    assert [len(counts) for counts in links] == [4] * 8


@pytest.mark.parametrize(("slots", "rings"), [
    ((0, 1), 1), ((0, 3), 2), ((0, 5), 0), ((0, 1, 2), 2), ((0, 1, 6), 0), ((0, 1, 2, 3), 4),
    ((0, 1, 4, 5), 2), ((4, 5, 6, 7), 4), (tuple(range(8)), 6)])
def test_rings_of_a_dgx_1(slots, rings):
    assert len(nodes.rings("dgx-1", slots)) == rings
    if rings:
        assert reached(V100, *slots) == rings * NVLINK


@pytest.mark.parametrize("count", range(2, 9))
def test_rings_use_links_that_exist_and_are_free(count):
    for slots in combinations(range(8), count):
        used: dict[tuple[int, int], int] = {}
        for ring in nodes.rings("dgx-1", slots):
            assert sorted(ring) == list(slots)
            for step in zip(ring, ring[1:] + ring[:1], strict=True):
                used[step] = used.get(step, 0) + 1
        assert all(times <= CUBE_MESH[min(step), max(step)] for step, times in used.items())


def test_without_a_ring_over_nvlinks_the_slowest_hop_over_pcie_decides():
    assert reached(V100, 0, 5) == reached(V100, 0, 1, 6) == NODES["dgx-1"].interconnect
    assert reached(V100_PCIE, 0, 1) == V100_PCIE.pcie * V100_PCIE.efficiency.link
    assert reached(V100_PCIE, 0, 4) == reached(T4, *range(8)) == NODES["pcie"].interconnect == 10e9
    assert reached(H100_PCIE, 0, 4) == NODES["pcie-switches-2023"].interconnect == 22e9


def test_without_p2p_the_host_s_memory_has_the_rate_of_pcie():
    """Every byte passes each GPU's PCIe link once, with peer access and without it."""
    assert reached(RTX3090, 0, 1) == reached(RTX3090, *range(8)) == 32e9 * 0.77
    assert reached(T4, 0, 1) == reached(T4, *range(4)) == 16e9 * 0.77
    for card in (RTX3090, T4):
        assert intranode.pair(GpuSlot(card, 0), GpuSlot(card, 1)) == Link(
            "shared memory", card.pcie, 8e-6, 0.77)
    switched = [intranode.pair(GpuSlot(V100_PCIE, 0), GpuSlot(V100_PCIE, slot))
                for slot in (1, 2, 4)]
    assert switched == [Link("PCIe", 16e9, 5e-6, 0.77), Link("shared memory", 16e9, 8e-6, 0.77),
                        Link("shared memory", 10e9, 8e-6, 1.0)]


@pytest.mark.parametrize("card", [V100, A100, H100], ids=lambda card: card.name)
def test_no_nvlink_leaves_a_node(card):
    """Ranks beyond a node's last GPU are modeled in another node of the same type."""
    assert len(nodes.rings(card.node, (8, 11))) == len(nodes.rings(card.node, (0, 3))) > 0
    assert intranode.nvlinks(GpuSlot(card, 0), GpuSlot(card, 8)) == 0
    assert nodes.rings(card.node, tuple(range(9))) == nodes.rings(card.node, (0, 8)) == ()
    assert reached(card, 0, 8) == reached(card, *range(9)) == min(
        NODES[card.node].interconnect, card.pcie * card.efficiency.link)


def test_behind_a_switch_any_gpus_reach_each_other_at_the_full_rate():
    for card in (A100, H100):
        full = pytest.approx(card.nvlink * card.efficiency.link)
        assert reached(card, 0, 5) == reached(card, *range(8)) == full


def test_a_send_uses_the_links_of_its_pair():
    eight = job(V100, range(8))
    assert eight.p2p_path(0, 1).bandwidth == NVLINK
    assert eight.p2p_path(0, 4).bandwidth == 2 * NVLINK
    assert eight.p2p_path(0, 7).bandwidth == NODES["dgx-1"].interconnect


def test_many_sends_at_once_use_the_links_of_each_pair():
    """Each of four GPUs sends a quarter to each other one; the pairs with one link take longest."""
    four = job(V100, range(4)).path(range(4))
    size = 10**9
    assert collectives.all_to_all(four, size) - collectives.LAUNCH - four.near == pytest.approx(
        size / 4 / NVLINK)
    seats = tuple(GpuSlot(V100, slot) for slot in range(8))
    assert intranode.slowest_pair(seats) == NVLINK  # through a third GPU, where two share no link
    switched = job(A100, range(8)).path(range(8))
    assert collectives.all_to_all(switched, size) == pytest.approx(
        collectives.LAUNCH + 7 / 8 * size / switched.bandwidth + switched.near)


def test_slurm_s_choice_of_gpus_decides():
    assert job(V100, (0, 3)).path((0, 1)).bandwidth == 2 * job(V100, (0, 1)).path((0, 1)).bandwidth
    assert job(V100, (4, 4)).seats == job(V100, (0, 1)).seats  # two ranks on one GPU: in order
    assert job(V100, (None, 3)).seats == job(V100, (0, 1)).seats


def test_nccl_s_channels_follow_the_rings():
    eight = job(V100, range(8))
    orders = eight.rings(range(8))
    assert len(orders) == 6 and all(sorted(order) == list(range(8)) for order in orders)
    assert job(V100, (0, 3)).rings((0, 1)) == [[0, 1]]
    both = Topology(("a",) * 8 + ("b",) * 8, (V100,) * 16, network.parse("infiniband:4x100gbit"))
    (order,) = both.rings(range(16))
    assert order == [*orders[0], *(rank + 8 for rank in orders[0])]
