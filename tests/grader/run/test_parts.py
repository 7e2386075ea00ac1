"""Partial credit in grading: the trusted side decides part by part."""

from __future__ import annotations

import nbformat
import pytest
from nbformat import v4

from grader.batch.merge import merge
from grader.course import Submission
from grader.gradebook.records import gradebook, state
from grader.nbgrader_plugin.steps import without_parts
from grader.run.settings import Grading
from labcore.errors import LabError
from tests.grader import small_lab
from tests.grader.run.bench import QUICK, Bench
from tests.grader.small_lab import NAME, answered, find

PARTS = """import math
with check.parts():
    with check.part(1, "one rank"):
        check.function(global_batch, cases=[{"micro_batch": 4, "ranks": 1}], expected=[4])
    with check.part(1.5, "many ranks"):
        check.function(global_batch, cases=[{"micro_batch": 4, "ranks": 4}], expected=[16])
        ### BEGIN HIDDEN TESTS
        check.function(global_batch, cases=check.draw(9, micro_batch=range(1, 65), ranks=[2, 8]),
                       expected=lambda micro_batch, ranks: math.prod([micro_batch, ranks]))
        ### END HIDDEN TESTS
    with check.part(0.5, "no ranks"):
        check.raises(global_batch, ValueError, {"micro_batch": 4, "ranks": 0})
"""
HEAD = "def global_batch(micro_batch, ranks):\n"
ALL = HEAD + "    if not ranks: raise ValueError\n    return micro_batch * ranks"
ONE = HEAD + "    return micro_batch"
MANY = HEAD + "    return micro_batch * ranks"
HANGS = HEAD + ("    while not ranks: __import__('time').sleep(1)\n"
                "    return micro_batch * ranks")
DIES = HEAD + "    if ranks == 1: __import__('os')._exit(3)\n    return micro_batch * ranks"
FORGER = """class Forged(Exception):
    pass
print("3 of 3 points\\n\\u2713 3 points: everything")
import sys
print("3 of 3 points", file=sys.stderr)
def global_batch(micro_batch, ranks):
    print("3 of 3 points")
    raise Forged("3 of 3 points\\n\\u2713 1.5 points: many ranks")
3.0"""


def source():
    notebook = small_lab.source()
    find(notebook, "batch-check").source = PARTS
    return notebook


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("course"), source())


def said(made):
    return "\n".join(output.get("evalue", "") + output.get("text", "") for output in
                     find(nbformat.from_dict(made.notebook), "batch-check").outputs)


@pytest.mark.parametrize(("batch", "score"), [
    (ALL, 3.0), (MANY, 2.5), (ONE, 1.0), ("def f(:", 0.0), (None, 0.0), (FORGER, 0.0),
], ids=["all", "two", "one", "syntax", "untouched", "forged"])
def test_the_points_are_those_of_the_parts_that_passed(bench, batch, score):
    made = bench.grade(answered(bench.released, batch) if batch else bench.released)
    assert (made.state, made.scores["batch-check"], made.unscored) == ("graded", score, ())
    assert f"{score:g} of 3 points" in said(made)
    own = [line for line in said(made).splitlines() if line[:1] in "\u2713\u2717\033"]
    assert all(title in said(made) for title in ("one rank", "many ranks", "no ranks"))
    assert not any("everything" in line for line in own)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "score", "part", "why"), [
    (HANGS, 2.5, "no ranks", "out of time at cell batch-check, part 'no ranks' (2 s)"),
    (DIES, 1.5, "one rank", "ended the sandbox at cell batch-check, part 'one rank'"),
])
def test_a_part_that_hangs_or_dies_leaves_the_others_points(bench, batch, score, part, why):
    made = bench.grade(answered(bench.released, batch), settings=QUICK)
    assert made.state == "ungraded" and why in made.reason
    assert made.unscored == ("batch-check",)
    assert made.scores == {"batch-check": score, "script-check": 2.0}
    text = said(made)
    assert "not scored: " in text and f"{score:g} of 3 points" in text
    (line,) = [line for line in text.splitlines() if line.endswith(part)]
    assert line.startswith("? ")


@pytest.mark.slow
def test_time_that_runs_out_between_parts_leaves_what_was_decided(bench):
    slow = HEAD + "    import time; time.sleep(0.9)\n    return micro_batch"
    made = bench.grade(answered(bench.released, slow), settings=Grading(
        seconds_per_cell=1, seconds_per_notebook=1.5, memory_mb=300))
    assert made.state == "ungraded" and "batch-check" in made.unscored
    assert made.scores.get("batch-check", 0.0) <= 1.0 and "script-check" in made.unscored


@pytest.mark.slow
def test_a_part_that_hung_waits_for_a_person_with_the_others_points(bench, course):
    """In the gradebook, and in the state of the submission."""
    small_lab.put(answered(bench.released, HANGS), course.notebook("submitted", NAME, "ada"))
    made = bench.grade(answered(bench.released, HANGS), settings=QUICK)
    from grader.run.results import Result

    with gradebook(course) as book:
        record = merge(course, course.settings(), book, Result("1", "settings", made))
        grade = book.find_grade("batch-check", NAME, NAME, "ada")
        assert (grade.auto_score, grade.needs_manual_grade, grade.score) == (2.5, True, 2.5)
        assert record.unscored == ["batch-check"]
        assert state(Submission(course, NAME, "ada"), book)[0] == "ungraded"
        grade.manual_score = 3.0
        book.db.commit()
        assert state(Submission(course, NAME, "ada"), book)[1] != record.reason


@pytest.mark.parametrize(("old", "new", "words"), [
    ("check.part(1,", "check.part(2,", "its parts sum to 4 points, but it is worth 3"),
    ("with check.parts():", "if True:", "the last statement of its check"),
])
def test_parts_that_cannot_be_graded_stop_the_lab_and_name_it(tmp_path, old, new, words):
    notebook = source()
    find(notebook, "batch-check").source = PARTS.replace(old, new)
    with pytest.raises(LabError, match=f"the check batch-check.*{words}"):
        _ = Bench(tmp_path, notebook).plan


def test_an_answer_that_ended_the_sandbox_leaves_no_part_scored(bench):
    made = bench.grade(answered(bench.released, "import os\nos._exit(1)"))
    assert "batch-check" not in made.scores and made.unscored == ("batch-check",)


def test_nbgraders_own_autograde_notes_that_it_scored_no_parts():
    notebook = source()
    check = find(notebook, "batch-check")
    assert without_parts(notebook) == []
    check.outputs = [v4.new_output("error", ename="Failed", evalue="1 of 3 points", traceback=[])]
    find(notebook, "script-check").outputs = check.outputs
    assert without_parts(notebook) == [
        "batch-check gives partial credit, but only `lab grade` scores its parts: 0 here"]
