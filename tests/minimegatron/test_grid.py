"""Ranks stand where Megatron puts them."""

from minimegatron.grid import GROUPS, groups_along


def test_megatron_s_example_of_16_ranks():
    grid = {"pp": 4, "dp": 2, "tp": 2}
    assert groups_along("tp", grid)[:2] == [(0, 1), (2, 3)]
    assert groups_along("dp", grid)[:2] == [(0, 2), (1, 3)]
    assert groups_along("pp", grid)[0] == (0, 4, 8, 12)
    assert groups_along("model", grid) == [(0, 1, 4, 5, 8, 9, 12, 13),
                                             (2, 3, 6, 7, 10, 11, 14, 15)]


def test_every_rank_is_once_in_each_group():
    for axis in GROUPS:
        groups = groups_along(axis, {"pp": 3, "dp": 4, "tp": 2})
        assert sorted(rank for group in groups for rank in group) == list(range(24))
