"""The contest `plans`: invalid plans are disqualified by name; ghosts rank as their ideas do."""

import shlex

import pytest

from cluster_planner.case_model import InvalidPlan, step
from labkit.contest import catalog
from labkit.contest.contests.plans import EMBEDDING, GPUS, HEAD
from labkit.contest.play import ghosts, play, points
from layout_estimator.requests import SHAPES, estimate
from tests.cluster_planner.cases import CASE

CONTEST = catalog.find("plans")


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
