"""The servers whose wiring students read."""

import pytest

from lablib import servers
from virtualgpu.core.cards import find
from virtualgpu.smi import table
from virtualgpu.smi.gpus import Gpu

each_server = pytest.mark.parametrize("server", servers.SERVERS)


@each_server
def test_links_are_the_same_in_both_directions(server):
    cells = servers.SERVERS[server].cells
    assert {len(row) for row in cells} == {len(cells)}
    assert [*zip(*cells, strict=True)] == [*cells]


def test_eight_gpus_of_a_dgx_1_form_a_faster_ring_than_any_four():
    links = servers.matrix("DGX-1 (V100)")
    assert [servers.fastest(links, count) for count in (2, 4, 8)] == ["NV2", "NV1", "NV2"]
    assert servers.slowest_hop(links, [0, 3, 2, 1, 5, 6, 7, 4])["enough"]
    assert not servers.slowest_hop(links, range(8))["enough"]


@each_server
def test_a_ring_of_two_uses_the_fastest_link(server):
    links = {cell for row in servers.SERVERS[server].cells[:8] for cell in row[:8]} - {" X "}
    assert servers.fastest(servers.matrix(server), 2) == max(links, key=servers.speed)


def test_the_numbering_of_the_gpus_can_change():
    text = servers.topology("DGX-1 (V100)", (7, 6, 5, 4, 3, 2, 1, 0))
    lines = [line.split("\t") for line in text.splitlines()]
    assert lines[1] == ["GPU0", " X ", "NV2", "NV1", "NV2", "NV1", "SYS", "SYS", "SYS",
                        "SYS", "SYS", "PHB", "PIX", "20-39,60-79"]
    assert lines[9][:9] == ["NIC0", *["SYS"] * 4, "PHB", "PHB", "PIX", "PIX"]


def test_the_matrix_looks_like_that_of_the_virtual_nodes():
    gpus = [Gpu("node1", number, number, find("v100")) for number in range(8)]
    virtual, real = table.matrix(gpus, adapters=True), servers.topology("DGX-1 (V100)")
    titles, *rows = zip(virtual.splitlines()[:13], real.splitlines()[:13], strict=True)
    assert titles[0].startswith(titles[1])
    assert all(one.split("\t")[:13] == other.split("\t")[:13] for one, other in rows)
    assert table.LEGEND in real
    assert virtual.split("Legend:")[1:2] == real.split("Legend:")[1:2]


def test_the_hop_back_counts():
    hop = servers.slowest_hop(servers.matrix("DGX-1 (V100)"), [4, 0, 3, 2])
    assert hop == {"link": "SYS", "from": 2, "to": 4, "closes": True, "enough": False}


def test_a_ring_is_as_fast_as_its_slowest_hop():
    best, plain = (servers.ring_seconds("v100", ring, 10**9)
                   for ring in ([0, 3, 2, 1, 5, 6, 7, 4], range(8)))
    assert best < plain / 2
    assert servers.best_ring_seconds("v100", 8, 10**9) == best
    assert servers.ring_seconds("a100", range(8), 10**9) == pytest.approx(
        servers.ring_seconds("a100", [3, 1, 0, 2, 7, 5, 4, 6], 10**9))


@pytest.mark.parametrize("ring", [None, "0123", [0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 8],
                                  [0.0, 1, 2, 3], [True, 0, 2, 3], (0, 1, 2, 3)])
def test_what_is_no_ring_is_recognized(ring):
    assert not servers.is_ring(ring, 4)


def test_unhashable_answers_are_no_rings():
    assert not servers.is_ring([[0], [1]], 2)
