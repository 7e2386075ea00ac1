"""Ranks stand where Megatron puts them."""

from minimegatron.grid import groups_along


def test_megatron_s_example_of_16_ranks():
    grid = {"pp": 4, "dp": 2, "tp": 2}
    assert groups_along("tp", **grid)[:2] == [(0, 1), (2, 3)]
    assert groups_along("dp", **grid)[:2] == [(0, 2), (1, 3)]
    assert groups_along("pp", **grid)[0] == (0, 4, 8, 12)


def test_every_rank_is_once_in_each_axis():
    for axis in ("pp", "dp", "tp"):
        groups = groups_along(axis, pp=3, dp=4, tp=2)
        assert sorted(rank for group in groups for rank in group) == list(range(24))
