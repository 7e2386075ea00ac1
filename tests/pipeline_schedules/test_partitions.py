"""Which stages may be empty; FASOP's greedy partition, by hand and on random stages."""

from random import Random

import pytest

from pipeline_schedules import empty_stage, fasop, fewest_layers


@pytest.mark.parametrize(("split", "empty"), [
    ((0, 11, 8, 8, 8, 8, 5, 0), None), ((4, 0, 8), 1), ((0, 3, 2, 0, 0), 3), ((0, 9), None),
    ((9, 0), None), ((9,), None)])
def test_only_outer_stages_may_be_empty(split, empty):
    assert empty_stage(split) == empty
    assert fewest_layers(len(split)) == [0, *[1] * (len(split) - 2), 0][:len(split)]


def linear(speeds, layers, edges=None):
    edges = edges or [0] * len(speeds)
    return [[edge + speed * count for count in range(layers + 1)]
            for speed, edge in zip(speeds, edges, strict=True)]


def slowest(times, split):
    return max(time[count] for time, count in zip(times, split, strict=True))


def test_layers_leave_the_slowest_stage_one_by_one():
    # 3-3-3 takes 3, 3, 9; then 4-3-2 takes 4, 3, 6; then 4-4-1 takes 4, 4, 3.
    assert fasop(linear([1, 1, 3], 9)) == [4, 4, 1]
    assert fasop(linear([1, 1], 5)) == [3, 2]  # after 2-3; a further move would repeat it
    assert fasop(linear([1, 9, 9, 1], 50, [0, 9, 9, 0]))[0] >= 13  # begins with 13-12-12-13
    assert fasop(linear([1, 1], 5, [0, 10])) == [4, 1]  # and each keeps one
    assert fasop(linear([2], 3)) == [3]


def test_a_move_that_makes_the_slowest_stage_slower_is_taken_back():
    assert fasop(linear([4, 5], 4)) == [2, 2]  # 3-1 would take 12, not 10


def test_the_slowest_stage_is_never_slower_than_with_equal_stages():
    random = Random(2)
    for _ in range(100):
        stages = random.randint(1, 6)
        layers = random.randint(stages, 30)
        times = linear([random.uniform(1, 9) for _ in range(stages)], layers)
        split = fasop(times)
        even = [layers // stages] * stages
        for stage in range(layers % stages):
            even[stage - 1] += 1
        assert sum(split) == layers and min(split) >= 1
        assert slowest(times, split) <= slowest(times, even)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="3 stages"):
        fasop(linear([1, 1, 1], 2))
