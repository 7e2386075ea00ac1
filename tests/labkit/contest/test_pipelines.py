"""The contest of pipeline schedules."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from labkit.contest.contests.pipelines import CONTEST, ideal, one_at_a_time
from labkit.contest.declaration import Case
from labkit.contest.play import FLOOR, ghost, ghosts, play, play_one, points
from pipeline_schedules import BUILT_IN, V_SHAPED, Action, Durations, VShaped, simulate, to_text
from pipeline_schedules.actions import dependencies

CASE = {"stages": 2, "micro_batches": 4, "chunks": [1, 2], "forward": [10, 10],
        "backward": [10, 10], "weight": [10, 10], "link": 0.0, "activation": [100, 100],
        "memory": [200, 200]}


def outcome(answer, **changed):
    """Return the result of one answer in CASE."""
    return play_one(CONTEST, Case("one", "even", CASE | changed), lambda given: answer)


def random_schedule(case, chunks: int, split: bool, source: random.Random, v_shaped: bool):
    """A sound schedule: actions in any order in which all that they need has run."""
    stages, kinds = case["stages"], "FBW" if split else "FB"
    left = [(stage, Action(kind, k, chunk)) for stage in range(stages) for kind in kinds
            for k in range(case["micro_batches"]) for chunk in range(chunks)]
    done, lists = set(), [[] for _ in range(stages)]
    while left:
        ready = [one for one in left if done.issuperset(dependencies(*one, stages, chunks,
                                                                              v_shaped))]
        stage, action = source.choice(ready)
        lists[stage].append(action)
        done.add((stage, action))
        left.remove((stage, action))
    return VShaped(lists) if v_shaped else lists


@settings(max_examples=40)
@given(some.integers(0, 10**6))
def test_no_schedule_beats_the_ideal(seed):
    source = random.Random(seed)
    stages = source.randint(1, 4)
    case = CASE | {"stages": stages, "micro_batches": source.randint(1, 4),
                   "link": source.choice([0, 3.5]), "chunks": [1, 2]} | {
        name: [source.randint(1, 20) for _ in range(stages)]
        for name in ("forward", "backward", "weight")}
    made = random_schedule(case, source.choice([1, 2]), source.random() < 0.5, source,
                           source.random() < 0.5)
    clock = Durations(*(case[name] for name in ("forward", "backward", "weight", "link")))
    assert simulate(made, clock).total >= ideal(case) * (1 - 1e-9)


def test_the_ideal_can_be_reached():
    """By ZB-H1 with equal times, and by one stage alone."""
    assert outcome(to_text(BUILT_IN["zb-h1"](2, 4)), chunks=[1]).score == 1.0
    case = {"stages": 1, "chunks": [1]} | {name: [10] for name in (
        "forward", "backward", "weight")} | {"activation": [100], "memory": [100]}
    assert outcome(["F0 B0 F1 B1 F2 B2 F3 B3"], **case).score == 1.0


def test_an_answer_may_be_v_shaped():
    """Where two chunks are allowed."""
    answer = {"placement": "v", "stages": to_text(V_SHAPED["zbv"](2, 4))}
    assert outcome(answer).score == 1.0
    assert outcome(answer, chunks=[1]).kind == "wrong chunks"
    assert outcome({"placement": "v", "stages": [["F0"] * 10**4] * 2}).kind == "no schedule"


@pytest.mark.parametrize(("answer", "kind", "reason"), [
    (["F0 F1 F2 F3 B3 B2 B1 B0"] * 2, "over the memory cap",
     "stage 0 keeps 4 activations of 100 MiB, 400 MiB in total: 200 MiB over its cap of 200 MiB "
     "(and 1 other stage is over the limit)"),
    (["B0 F0 F1 B1 F2 B2 F3 B3", "F0 B0 F1 B1 F2 B2 F3 B3"], "wrong order", "before F0"),
    (["F0 B0 F1 B1 F2 B2 F3 B3", "F1 B1 F0 B0 F2 B2 F3 B3"], "deadlock", "stage 0 is at B0"),
    (["F0 B0 F1 B1 F2 B2"] * 2, "incomplete", "no stage runs micro-batch 3"),
    (["F0 B0 F1 B1 F2 B2 F3 B3", "F0 B0 F1 B1 F2 B2 F3"], "incomplete", "never runs B3"),
    (["F0 B0 F1 B1 F2 B2 F3 B3 B3"] * 2, "incomplete", "runs B3 2 times"),
    (["F0 B0 F1 B1 F2 B2 F3 B3"], "wrong stages", "for 1 stage"),
    (["F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"] * 2, "incomplete", "micro-batch 4"),
    (["F0.2 B0.2"] * 2, "wrong chunks", "3 chunks per stage; allowed: 1, 2"),
    (3, "no schedule", "not a int"), (None, "no schedule", ""), ({"a": 1}, "no schedule", ""),
    (["F0 F" + "0" * 50] * 2, "no schedule", "is not an action"),
    (["F0 " * 10**5] * 2, "no schedule", "far too"), ([["F0"]] * 10**4, "no schedule", "stages"),
    ([["F0"] * 10**4] * 2, "no schedule", "far too many"), ([[0.5]], "no schedule", "0.5"),
    (float("nan"), "no schedule", ""), ([[[["F0"]]]], "no schedule", "")])
def test_what_cannot_run_is_disqualified_with_its_reason_and_a_hint(answer, kind, reason):
    result = outcome(answer)
    assert (result.kind, result.score) == (kind, FLOOR) and reason in result.reason
    assert result.hint and len(result.reason) <= 1000


def test_a_naive_pipeline_counts_and_is_last_but_for_the_disqualified():
    result = outcome(one_at_a_time(CASE))
    assert not result.kind and FLOOR < result.score < outcome(to_text(BUILT_IN["1f1b"](2, 4))).score


def test_chunks_share_a_stages_memory():
    made = to_text(BUILT_IN["interleaved"](2, 4, 2))
    assert outcome(made, memory=[250, 200]).kind == ""  # 5 and 4 halves of 100 MiB
    assert "5 activations of 50 MiB" in outcome(made, memory=[249, 200]).reason


def test_a_schedule_hard_coded_for_the_open_cases_fails_the_secret_ones():
    known = {str(case.given): to_text(BUILT_IN["1f1b"](case.given["stages"],
                                                       case.given["micro_batches"]))
             for case in CONTEST.open_cases()}

    def hard_coded(case):
        return known[str(case)] if str(case) in known else next(iter(known.values()))

    assert not any(one.kind for one in play(CONTEST, CONTEST.open_cases(), ghost(hard_coded)))
    secret = play(CONTEST, CONTEST.secret_cases("any"), ghost(hard_coded))
    assert all(one.kind in ("wrong stages", "incomplete") for one in secret)


def test_choosing_among_the_built_ins_beats_every_ghost():
    def best(case):
        clock = Durations(case["forward"], case["backward"], case["weight"], case["link"])
        sizes = case["stages"], case["micro_batches"]
        made = [BUILT_IN["1f1b"](*sizes), BUILT_IN["zb-h1"](*sizes)]
        if len(case["chunks"]) > 1:
            made.append(BUILT_IN["interleaved"](*sizes, 2))
        sound = [one for one in made if not outcome(to_text(one), **case).kind]
        return to_text(min(sound, key=lambda one: simulate(one, clock).total))

    cases = CONTEST.secret_cases("any")
    mine = points(play(CONTEST, cases, ghost(best)))
    assert all(points(found) < mine for found in ghosts(CONTEST, cases).values())
    assert 80 < mine < 100
