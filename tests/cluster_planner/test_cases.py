"""The modeled step of a case's plans, its bounds, and the planners that compete."""

import json
from itertools import islice, permutations, product
from random import Random

import pytest

from benchmarks import planners
from cluster_planner import case_planners, partition
from cluster_planner.case_model import (
    InvalidPlan,
    all_reduce,
    bound,
    case_stages,
    durations,
    step,
    timeline,
)
from cluster_planner.case_planners import (
    amp,
    balanced,
    fasop,
    lower_bound,
    search,
)
from cluster_planner.placement import orders
from cluster_planner.timing import step_times
from labkit.contest import catalog
from tests.cluster_planner.cases import CASE

CONTEST = catalog.find("plans")
ROOMY = {**CASE, "kinds": {kind: {**spec, "memory": 1e9} for kind, spec in CASE["kinds"].items()}}


def test_a_step_by_hand():
    alone = {**CASE, "global_batch": 1, "replicas": [1]}
    made = step(alone, {"replicas": 1, "stages": [["slow", 2], ["fast", 6]]})
    # Forward 4, link, 6 + 1; backward 12 + 1, link, 8.
    assert made.milliseconds == pytest.approx(4 + 0.5 + 7 + 13 + 0.5 + 8)
    assert made.busy == pytest.approx([12 / 33, 20 / 33])
    assert made.memory == pytest.approx([2 * 0.6, 6 * 0.6]) and made.all_reduce == [0, 0]


def test_replicas_share_a_node_or_pay_for_the_network():
    made = step(CASE, {"replicas": 2, "stages": [["slow", 3], ["fast", 5]]})
    assert made.all_reduce == pytest.approx([1000 * 3 * 0.1 / 10, 1000 * 5 * 0.1 / 100])


@pytest.mark.parametrize("layers", [[0, 4, 4, 0], [0, 8], [8, 0]])
def test_the_first_and_the_last_stage_may_be_empty(layers):
    kinds = ["fast", "slow", "fast", "slow"] if len(layers) > 2 else ["fast", "fast"]
    plan = {"replicas": 1, "stages": list(zip(kinds, layers, strict=True))}
    assert step({**CASE, "activation": 0}, plan).milliseconds > 0


def test_orders_are_distinct_and_complete():
    counts = {"a": 3, "b": 2, "c": 1}
    made = list(orders(counts))
    assert len(made) == len(set(made)) == 60 and set(made) == set(permutations("aaabbc"))


@pytest.mark.parametrize("kinds", [("fast", "slow", "fast"), ("slow", "slow", "fast")])
@pytest.mark.parametrize("memory", [8, 2.1])
def test_the_balanced_split_has_the_fastest_slowest_stage(kinds, memory):
    case = {**CASE, "kinds": {kind: {**spec, "memory": memory}
                              for kind, spec in CASE["kinds"].items()}}

    def slowest(plan):
        return max(map(sum, zip(*durations(case, plan), strict=True)))

    plans = [{"replicas": 1, "stages": [list(one) for one in zip(kinds, layers, strict=True)]}
             for layers in product(range(9), repeat=3) if sum(layers) == 8]
    fitting = []
    for plan in plans:
        try:
            step(case, plan)
        except InvalidPlan:
            continue
        fitting.append(slowest(plan))
    made = balanced(case, 1, kinds)
    assert step(case, made) and slowest(made) == min(fitting)


def test_the_balanced_split_leaves_only_outer_stages_empty():
    case = {**CASE, "layers": 4, "kinds": {**CASE["kinds"], "slow": {
        **CASE["kinds"]["slow"], "layer": [20, 40], "memory": 0.5}}}
    assert balanced(case, 1, ("fast", "slow", "fast")) is None  # no room for a layer in the middle
    made = balanced({**case, "activation": 0}, 1, ("slow", "fast", "slow", "fast"))
    assert made["stages"] == [["slow", 0], ["fast", 3], ["slow", 1], ["fast", 0]]
    assert balanced(CASE, 1, ("fast",) * 11) is None  # 9 stages in the middle, 8 layers


def test_no_plan_beats_the_bounds():
    random = Random(1)
    for group in CONTEST.groups[:3]:
        case = {**group.draw(random), "global_batch": 8}
        for replicas in case["replicas"]:
            kinds = [kind for kind, spec in case["kinds"].items()
                     for _ in range(spec["gpus"] // replicas)]
            for _ in range(3):
                random.shuffle(kinds)
                plan = balanced(case, replicas, kinds)
                if plan is not None:
                    assert bound(case) <= lower_bound(case, plan) * (1 + 1e-9)
                    assert lower_bound(case, plan) <= step(case, plan).milliseconds * (1 + 1e-9)


def test_the_search_comes_within_1_percent_of_the_optimum_of_a_small_cluster():
    assert step(CASE, search(CASE)).milliseconds <= 1.01 * planners.optimum(CASE)


@pytest.mark.slow
def test_the_search_comes_within_1_percent_of_the_optimum_of_drawn_clusters():
    ratios = [step(case, search(case)).milliseconds / planners.optimum(case)
              for case in islice(planners.small_clusters(5), 8)]
    assert max(ratios) < 1.01 and min(ratios) > 1 - 1e-9, ratios


def test_the_search_is_no_slower_than_the_planners_whose_plans_it_begins_with(monkeypatch):
    monkeypatch.setattr(case_planners, "_leanest", lambda *_, **options: [])
    plan = json.loads(case_planners._searched.__wrapped__(json.dumps(CASE)))
    assert step(CASE, plan).milliseconds <= min(
        planners.milliseconds(CASE, planner) for planner in case_planners.SEEDS)


def test_placements_that_a_bound_leaves_out_would_change_no_plan(monkeypatch):
    case = next(planners.clusters(3))
    planned = (case_planners.amp, case_planners.fasop,
               lambda case: case_planners._leanest(case_planners.starts(case), most=5))

    def plans():
        case_planners._starts.cache_clear()
        *published, leanest = [planner(case) for planner in planned]
        return published, [(one.time, one.place, one.layers) for one in leanest]

    bounded, tried = plans(), []
    lean_splits = partition.lean_splits
    monkeypatch.setattr(partition, "lean_splits",
                        lambda stages: tried.append(stages) or lean_splits(stages))
    assert plans() == bounded and len(tried) < len(case_planners.starts(case))
    monkeypatch.setattr(partition, "least_time", lambda stages: 0.0)
    assert plans() == bounded
    case_planners._starts.cache_clear()


@pytest.mark.slow
def test_no_published_plan_is_faster_than_the_search():
    for case in islice(planners.clusters(3), 4):
        times = {name: planners.milliseconds(case, planner)
                 for name, planner in planners.PLANNERS.items()}
        assert min(times.values()) >= times["ours"] * (1 - 1e-9), times


def test_amp_takes_the_split_with_the_least_cost():
    kinds, replicas = ("slow", "fast", "slow"), 1
    costs = {}
    for layers in product(range(1, 9), repeat=3):
        if sum(layers) == CASE["layers"]:
            plan = {"replicas": replicas, "stages": list(zip(kinds, layers, strict=True))}
            times = list(map(sum, zip(*durations(CASE, plan), strict=True)))
            costs[layers] = sum(times) + (CASE["global_batch"] - 1) * max(times)
    made = partition.amp(case_stages(ROOMY, (replicas, kinds)))
    assert costs[made.layers] == pytest.approx(min(costs.values()))
    assert made.time == pytest.approx(min(costs.values()) + 2 * 2 * CASE["link"])


@pytest.mark.parametrize("planner", [amp, fasop])
def test_a_published_planner_drops_plans_that_do_not_fit(planner):
    assert step(CASE, planner(CASE)).milliseconds > 0
    tight = {**CASE, "kinds": {kind: {**spec, "memory": 0.1}
                               for kind, spec in CASE["kinds"].items()}}
    with pytest.raises(InvalidPlan, match="fits on no placement"):
        planner(tight)


def test_moving_layers_improves_the_split_with_the_fastest_slowest_stage():
    case = {**CASE, "global_batch": 2, "replicas": [1]}
    plan = balanced(case, 1, ("slow", "fast", "slow"))
    kinds, layers = zip(*plan["stages"], strict=True)
    better = partition.improved(case_stages(case, (1, kinds)), layers)
    made = {"replicas": 1, "stages": list(zip(kinds, better.layers, strict=True))}
    assert better.time == step(case, made).milliseconds < step(case, plan).milliseconds


def test_layers_move_in_every_way_that_keeps_their_sum():
    every = {change for change in product(range(-2, 3), repeat=3)
             if sum(change) == 0 and 1 <= sum(map(abs, change)) / 2 <= 2}
    assert sorted(map(tuple, partition.moves(3, 2).tolist())) == sorted(every)
    assert len(partition.moves(30, 8)) == 30 * 29  # many stages: one layer at a time


@pytest.mark.parametrize("group", CONTEST.groups, ids=lambda group: group.name)
def test_splits_that_are_timed_together_take_as_long_as_alone(group):
    random = Random(3)
    case = group.draw(random)
    kinds = tuple(random.choices(list(case["kinds"]), k=5))
    stages = case_stages(case, (1, kinds))
    splits = partition._neighbors(stages, partition.balanced(stages), 1)[:6]
    roomy = {**case, "kinds": {kind: {**spec, "memory": 1e9, "gpus": 5}
                               for kind, spec in case["kinds"].items()}}
    plans = [{"replicas": 1, "stages": list(zip(kinds, layers, strict=True))}
             for layers in splits.tolist()]
    times = step_times(stages, splits)
    assert times.tolist() == pytest.approx([step(roomy, plan).milliseconds for plan in plans])
    assert times.tolist() == pytest.approx([
        max(spans[-1].end + ring for spans, ring in zip(
            timeline(case, plan).spans.values(), all_reduce(case, plan), strict=True))
        for plan in plans])
    assert (partition.bounds(stages, splits) <= times * (1 + 1e-9)).all()
