"""The mechanism, on a contest that has nothing to do with schedules."""

from __future__ import annotations

import importlib
import re

import pytest

from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from labkit.check.sides import Raised
from labkit.check.wire import CannotCross
from labkit.contest import catalog, contests
from labkit.contest.declaration import RESERVED, CaseGroup, Scored
from labkit.contest.play import FLOOR, ghost, ghosts, play, points, points_by_group
from tests.labkit.contest.toy import draw, toy


def test_every_case_is_scored_and_one_that_fails_stops_no_other():
    def ask(given):
        if given["x"] == 1:
            raise CannotCross("a set")
        return Raised(("KeyError",), "'y'") if given["x"] == 2 else 4 * given["x"]

    outcome = play(toy(), toy().open_cases(), ask)
    assert [(one.case, one.kind, one.score) for one in outcome] == [
        ("small 1", "not a plain value", FLOOR), ("small 2", "error", FLOOR), ("small 3", "", 0.25),
        ("large 1", "", 0.25)]
    assert "raised KeyError: 'y'" in outcome[1].reason and outcome[1].hint
    assert outcome[2].note == "4 times x"


def test_points_are_a_geometric_mean():
    outcome = play(toy(2), toy(2).open_cases(), lambda given: 4 * given["x"] if given["x"] == 1
                   else given["x"] if given["x"] == 2 else "nothing")
    assert points_by_group(outcome) == {"small": 50.0, "large": 1.0}
    assert points(outcome) == round(100 * (0.25 * 1 * FLOOR) ** (1 / 3), 2)


def test_ghosts_are_scored_as_a_student_with_the_same_answers():
    cases = toy().open_cases()
    scores = ghosts(toy(), cases)
    assert scores["twice"] == play(toy(), cases, lambda given: 2 * given["x"])
    assert points(scores["x itself"]) == 100 and points(scores["twice"]) == 50
    # What a ghost returns is copied and judged as a student's is.
    assert {one.kind for one in play(toy(), cases, ghost(lambda case: {case["x"]}))} == {
        "not a plain value"}
    assert {one.kind for one in play(toy(), cases, ghost(lambda case: case["y"]))} == {"error"}


def test_a_scorer_that_gives_no_score_is_the_authors_error():
    for wrong in (0.0, 1.5, float("nan"), float("inf"), -1.0, 1, "1.0", None):
        broken = toy(score=lambda case, answer, wrong=wrong: Scored(wrong))
        with pytest.raises(ValueError, match="is not a valid score"):
            play(broken, broken.open_cases(), lambda given: 1)


def test_secret_cases_repeat_for_a_seed_and_are_none_of_the_open_ones():
    contest = toy(groups=[CaseGroup("few", "", [{"x": 1}, {"x": 2}],
                                lambda random: {"x": random.randint(1, 6)}, 4)])
    for seed in map(str, range(20)):
        drawn = contest.secret_cases(seed)
        assert drawn == contest.secret_cases(seed)
        assert sorted(case.given["x"] for case in drawn) == [3, 4, 5, 6]
    assert len({str(contest.secret_cases(str(seed))) for seed in range(20)}) > 5
    with pytest.raises(ValueError, match="no new case"):
        toy(groups=[CaseGroup("few", "", [{"x": 1}], lambda random: {"x": random.randint(1, 3)}, 3)]
            ).secret_cases("")


@pytest.mark.parametrize("wrong", [
    *({"name": name} for name in (*RESERVED, "No", "a-b", "")), {"file": "../a.py"},
    {"file": "a.txt"}, {"entry": "a b"}, {"seconds": 0}, {"seconds": 3600}, {"groups": ()},
    {"groups": (CaseGroup("a", "", [{}], draw, 1),) * 2},
    {"groups": (CaseGroup("a", "", [], draw, 1),)},
    {"groups": (CaseGroup("a", "", [{}], draw, 0),)}])
def test_a_declaration_that_will_not_do_is_refused(wrong):
    with pytest.raises(ValueError, match="invalid: "):
        toy(**wrong)


def test_another_contest_is_one_more_file(tmp_path, monkeypatch):
    for name in ("toy", "other"):
        (tmp_path / f"{name}.py").write_text(
            "from tests.labkit.contest.toy import toy\nCONTEST = toy()\n")
    monkeypatch.setattr(contests, "__path__", [*contests.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    assert catalog.names() == ["other", "pipelines", "plans", "toy"]
    assert catalog.find("toy").title == "A toy"
    with pytest.raises(ValueError, match="a contest called toy"):
        catalog.find("other")
    with pytest.raises(LabError, match="no contest pipeline; available: pipelines"):
        catalog.find("pipeline")


def test_the_guides_contest_can_be_played():
    page = (CHECKOUT / "docs" / "contests.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(source, names)
    contest = names["CONTEST"]
    cases = contest.secret_cases("any")
    assert len(cases) == 8

    def smallest_prime(given):
        return next(given["n"] // factor for factor in range(2, given["n"] + 1)
                    if given["n"] % factor == 0)

    mine = play(contest, cases, smallest_prime)
    assert points(mine) > points(ghosts(contest, cases)["one"])
    assert points_by_group(mine)["even"] == 50.0
    assert play(contest, cases, lambda given: 0)[0].kind == "no factor"


@pytest.mark.parametrize("each", [8, pytest.param(4, marks=pytest.mark.stress)])
@pytest.mark.parametrize("name", catalog.names())
def test_every_contest_that_ships_can_be_played(name, each):
    contest = catalog.find(name)
    for cases in (contest.open_cases(), contest.secret_cases("any")):
        scores = ghosts(contest, cases[::each])  # a search of its own for each case
        assert any(not one.kind for outcomes in scores.values() for one in outcomes)
