"""The modeled step of plans on mixed clusters, its bounds, and the planners that compete."""

import json
import shlex
from itertools import islice, permutations, product
from random import Random

import numpy as np
import pytest

from benchmarks import planners
from labkit.contest import catalog, mixed_search
from labkit.contest.contests.plans import EMBEDDING, GPUS, HEAD
from labkit.contest.mixed_clusters import (
    InvalidPlan,
    all_reduce,
    bound,
    durations,
    step,
    timeline,
)
from labkit.contest.mixed_pipelines import MixedPipeline, moves
from labkit.contest.mixed_planners import balanced, placements
from labkit.contest.mixed_published import amp, amp_split, fasop
from labkit.contest.mixed_search import lower_bound, search
from labkit.contest.play import ghosts, play, points
from layout_estimator.requests import SHAPES, estimate

CONTEST = catalog.find("plans")
CASE = {"layers": 8, "global_batch": 8, "replicas": [1, 2], "link": 0.5, "state": 0.5,
        "activation": 0.1, "gradients": 0.1, "kinds": {
            "fast": {"gpus": 2, "per_node": 2, "embedding": [0, 0], "layer": [1, 2],
                     "head": [1, 1], "memory": 8, "inside": 100, "network": 10},
            "slow": {"gpus": 2, "per_node": 1, "embedding": [0, 0], "layer": [2, 4],
                     "head": [2, 2], "memory": 4, "inside": 100, "network": 10}}}


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


@pytest.mark.parametrize(("plan", "kind", "text"), [
    ([1], "no plan", "a plan is"),
    ({"replicas": 1}, "no plan", "a plan is"),
    ({"replicas": 3, "stages": [["fast", 8]]}, "replicas", "allowed: 1, 2"),
    ({"replicas": True, "stages": [["fast", 8]]}, "replicas", "True replicas"),
    ({"replicas": 1, "stages": []}, "no plan", "stages is a list"),
    ({"replicas": 1, "stages": [["fst", 8]]}, "no plan", "stage 0"),
    ({"replicas": 1, "stages": [["fast", 8.0]]}, "no plan", "stage 0"),
    ({"replicas": 1, "stages": [["fast", -1], ["fast", 9]]}, "no plan", "stage 0"),
    ({"replicas": 1, "stages": [[["fast"], 8]]}, "no plan", "stage 0"),
    ({"replicas": 1, "stages": [["fast", 7]]}, "layers", "7 layers in total; the model has 8"),
    ({"replicas": 1, "stages": [["fast", 4], ["slow", 0], ["fast", 4]]}, "empty stage",
     "stage 1 has no layers"),
    ({"replicas": 2, "stages": [["fast", 4], ["fast", 4]]}, "GPUs", "4 GPUs of kind fast"),
    ({"replicas": 1, "stages": [["slow", 8]]}, "memory", "stage 0 needs 4.8 GiB"),
])
def test_a_plan_that_cannot_run_is_disqualified_by_name(plan, kind, text):
    with pytest.raises(InvalidPlan, match=text) as error:
        step(CASE, plan)
    assert error.value.kind == kind
    (played,) = play(CONTEST, [type(CONTEST.open_cases()[0])("one", "two", CASE)],
                     lambda given: plan)
    assert played.kind == kind and played.hint


@pytest.mark.parametrize("layers", [[0, 4, 4, 0], [0, 8], [8, 0]])
def test_the_first_and_the_last_stage_may_be_empty(layers):
    kinds = ["fast", "slow", "fast", "slow"] if len(layers) > 2 else ["fast", "fast"]
    plan = {"replicas": 1, "stages": list(zip(kinds, layers, strict=True))}
    assert step({**CASE, "activation": 0}, plan).milliseconds > 0


def test_placements_are_distinct_and_complete():
    counts = {"a": 3, "b": 2, "c": 1}
    made = list(placements(counts))
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
    assert made["stages"] == [["slow", 0], ["fast", 2], ["slow", 1], ["fast", 1]]
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
    monkeypatch.setattr(mixed_search, "_leanest", lambda *_: [])
    plan = json.loads(mixed_search._searched.__wrapped__(json.dumps(CASE)))
    assert step(CASE, plan).milliseconds <= min(
        planners.milliseconds(CASE, planner) for planner in mixed_search.SEEDS)


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
    split, cost = amp_split(MixedPipeline(CASE, (replicas, kinds)), CASE["layers"])
    assert costs[tuple(split)] == pytest.approx(min(costs.values()))
    assert cost == pytest.approx(min(costs.values()) + 2 * 2 * CASE["link"])


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
    better = MixedPipeline(case, (1, kinds)).improved(np.array(layers), 1)
    assert better.milliseconds == step(case, better.plan).milliseconds
    assert better.milliseconds < step(case, plan).milliseconds
    assert [kind for kind, _ in better.plan["stages"]] == ["slow", "fast", "slow"]


def test_layers_move_in_every_way_that_keeps_their_sum():
    every = {change for change in product(range(-2, 3), repeat=3)
             if sum(change) == 0 and 1 <= sum(map(abs, change)) / 2 <= 2}
    assert sorted(map(tuple, moves(3, 2).tolist())) == sorted(every)
    assert len(moves(30, 8)) == 30 * 29  # many stages: one layer at a time


@pytest.mark.parametrize("group", CONTEST.groups, ids=lambda group: group.name)
def test_splits_that_are_timed_together_take_as_long_as_alone(group):
    random = Random(3)
    case = group.draw(random)
    kinds = tuple(random.choices(list(case["kinds"]), k=5))
    pipeline = MixedPipeline(case, (1, kinds))
    splits = balanced(case, 1, kinds)["stages"]
    splits = np.array([count for _, count in splits]) + moves(5, 1)[:6]
    roomy = {**case, "kinds": {kind: {**spec, "memory": 1e9, "gpus": 5}
                               for kind, spec in case["kinds"].items()}}
    plans = [{"replicas": 1, "stages": list(zip(kinds, layers, strict=True))}
             for layers in splits.tolist()]
    times = pipeline.milliseconds(splits)
    assert times.tolist() == pytest.approx([step(roomy, plan).milliseconds for plan in plans])
    assert times.tolist() == pytest.approx([
        max(spans[-1].end + ring for spans, ring in zip(
            timeline(case, plan).spans.values(), all_reduce(case, plan), strict=True))
        for plan in plans])
    assert (pipeline.bounds(splits) <= times * (1 + 1e-9)).all()


def test_ghosts_rank_as_their_ideas_do():
    cases = CONTEST.open_cases()[:2]
    results = {name: points(played) for name, played in ghosts(CONTEST, cases).items()}
    assert results["even"] < results["proportional"] < results["amp"] < results["balanced"] < 100
    assert results["proportional"] < results["fasop"] < results["balanced"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "card"), [("h100", "h100-80gb"), ("a100", "a100-40gb"),
                                            ("v100", "v100-32gb"), ("a10", "a10"), ("t4", "t4")])
def test_layer_times_are_those_of_virtual_gpus(name, card):
    *shape, seq_length, _ = SHAPES["gpt2-xl"]
    plan = estimate(shlex.split(
        f"--device virtual:{card} --num-layers 1 --hidden-size {shape[1]} --num-attention-heads "
        f"{shape[2]} --seq-length {seq_length} --max-position-embeddings {seq_length} --fp16 "
        "--micro-batch-size 1 --global-batch-size 3 --world-size 3 --balance 0-1-0 "
        "--pipeline-model-parallel-size 3")).estimate
    times = [[1000 * forward, 1000 * backward]
             for forward, backward in zip(plan.forward, plan.backward, strict=True)]
    embedding, layer, head = map(sum, times)
    assert GPUS[name][0] == pytest.approx(times[1], abs=0.005)
    assert head / layer == pytest.approx(HEAD, rel=0.1)
    assert embedding / layer == pytest.approx(EMBEDDING, abs=0.05)
