"""The servers whose wiring students read."""

from itertools import permutations

import pytest

from lab.notebook import servers

each_server = pytest.mark.parametrize("server", servers.SERVERS)


@each_server
def test_links_are_the_same_in_both_directions(server):
    rows = servers.matrix(server)
    assert len({len(row) for row in rows}) == 1
    assert all(rows[one][other] == rows[other][one] for one in range(8) for other in range(8))


@each_server
def test_the_best_rings_are_known(server):
    for count in servers.BEST[server]:
        found = [servers.slowest_hop(server, range(8), ring)
                 for ring in permutations(range(8), count)]
        best = max(servers.speed(hop["link"]) for hop in found)
        assert servers.speed(servers.BEST[server][count]) == best


def test_the_numbering_of_the_gpus_can_change():
    text = servers.topology("DGX-1 (V100)", (7, 6, 5, 4, 3, 2, 1, 0))
    first = text.splitlines()[1].split("\t")
    assert first[:9] == ["GPU0", " X ", "NV2", "NV1", "NV2", "NV1", "SYS", "SYS", "SYS"]
    assert text.splitlines()[9].startswith("mlx5_0\tSYS")


def test_the_hop_back_counts():
    hop = servers.slowest_hop("DGX-1 (V100)", range(8), [4, 0, 3, 2])
    assert hop == {"link": "SYS", "from": 2, "to": 4, "closes": True, "enough": False}


@pytest.mark.parametrize("ring", [None, "0123", [0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 8],
                                  [0.0, 1, 2, 3], [True, 0, 2, 3], (0, 1, 2, 3)])
def test_what_is_no_ring_is_recognized(ring):
    assert not servers.is_ring(ring, 4)


def test_unhashable_answers_are_no_rings():
    assert not servers.is_ring([[0], [1]], 2)
