"""On 200 random mixed clusters, the search keeps the best of the plans that it begins with."""

from itertools import islice

import pytest

from benchmarks import planners

pytestmark = pytest.mark.stress


def test_no_plan_is_faster_than_ours_on_200_clusters():
    for number, case in enumerate(islice(planners.clusters(2026), 200)):
        ours = planners.milliseconds(case, planners.PLANNERS["ours"])
        for name, planner in planners.PLANNERS.items():
            assert planners.milliseconds(case, planner) >= ours * (1 - 1e-9), (number, name)


def test_ours_is_within_1_percent_of_the_optimum_of_100_small_clusters():
    for number, case in enumerate(islice(planners.small_clusters(2026), 100)):
        ours = planners.milliseconds(case, planners.PLANNERS["ours"])
        assert 1 - 1e-9 <= ours / planners.optimum(case) < 1.01, number
