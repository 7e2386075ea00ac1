"""`lab stats`, on submissions that were graded by hand-made results."""

from __future__ import annotations

import csv
import json

import pytest

from grader import cleaning
from grader.batch import merge
from grader.gradebook import decisions, records
from grader.run import lab_plan, results
from grader.run.attempt import Attempt
from tests.grader.conftest import submit
from tests.grader.small_lab import NAME, RIGHT, WRONG, answered, find

HINT = "Say echo mine."


@pytest.fixture
def enter(course, released):
    """Enter a result, with a message of the second check."""
    plan, config = lab_plan.read(course, NAME), course.settings()

    def enter(student: str, scores: dict[str, float], said: str = "", answer: str = RIGHT, **more):
        submit(course, student, answered(released, answer))
        notebook = answered(plan.skeleton, answer)
        if said:
            find(notebook, "script-check").outputs = [cleaning.error("Failed", said, [said])]
        result = results.write(course, "", Attempt(
            student, NAME, course.digest(NAME, student), plan.digest,
            notebook=json.loads(json.dumps(notebook)), scores=scores,
            **{"state": "graded"} | more))
        with records.gradebook(course) as book:
            merge.merge(course, config, book, result)

    return enter


def tables(path):
    """The exercises and the hints."""
    collected = []
    for name in (f"{path.stem}.csv", f"{path.stem}-hints.csv"):
        with path.with_name(name).open() as file:
            collected.append(list(csv.DictReader(file)))
    return collected


def test_the_page_and_the_tables(course, enter, command, tmp_path):
    full = {"batch-check": 3.0, "script-check": 2.0}
    enter("ada", full)
    enter("grace", {"batch-check": 0.0, "script-check": 0.0}, HINT, WRONG)
    enter("grace", {"batch-check": 3.0, "script-check": 0.0}, HINT)
    enter("jm1", {"script-check": 0.0}, "no such words", state="ungraded", reason="out of time",
          unscored=("batch-check",))
    enter("jm2", full)
    submit_again = course.notebook("submitted", NAME, "jm2")
    submit_again.write_text(submit_again.read_text() + " ")  # since then: its scores are old
    path = tmp_path / "out.html"
    done = command("stats", NAME, "--to", str(path))
    assert done.returncode == 0, done.stderr
    assert "4 submissions, 2 graded; 2 exercises" in done.stdout
    exercises, hints = tables(path)
    batch, script = exercises
    assert [batch[name] for name in ("submissions", "scored", "unscored", "full", "zero", "mean",
                                     "difficulty", "discrimination", "tried")] == [
        "4", "2", "2", "2", "0", "3", "1", "", "3"]
    assert [script[name] for name in ("scored", "full", "zero", "failed_without_hint")] == [
        "3", "1", "2", "1"]
    assert hints == [{"exercise": "script-check", "hint": HINT, "fired": "1"}]
    text = path.read_text()
    assert "1 submissions are not the first attempt" in " ".join(text.split())
    for student in ("ada", "grace", "jm1", "jm2", "Lovelace", "uni.test"):
        assert student not in text


def test_who_is_excused_is_not_counted(course, enter, command, tmp_path):
    enter("ada", {"batch-check": 3.0, "script-check": 2.0})
    enter("grace", {"batch-check": 0.0, "script-check": 0.0})
    decisions.add(course, decisions.SCORE, ["grace", "jm1"], NAME, decisions.EXCUSED, "ill")
    done = command("stats", NAME, "--to", str(tmp_path / "out.html"))
    assert "1 submissions, 1 graded" in done.stdout, done.stderr
    assert tables(tmp_path / "out.html")[0][0]["mean"] == "3"
    assert "2 excused and not counted" in " ".join((tmp_path / "out.html").read_text().split())


def test_a_lab_that_nobody_handed_in_has_a_page(course, command):
    done = command("stats", NAME)
    assert done.returncode == 0, done.stderr
    exercises, hints = tables(course.root / "stats" / f"{NAME}.html")
    assert [one["difficulty"] for one in exercises] == ["", ""] and len(hints) == 1


@pytest.mark.parametrize("words, says", [
    (["nope"], "no lab nope"), ([NAME, "--to", "/tmp/x.csv"], "ends in .html"),
    ([NAME, "--to", "/nowhere/x.html"], "no folder /nowhere"), (["00_welcome"], "lab grade")])
def test_bad_input_is_named(course, command, words, says):
    done = command("stats", *words)
    assert done.returncode == 1 and says in done.stderr


def test_a_damaged_notebook_costs_its_messages_alone(course, enter, command, tmp_path):
    enter("ada", {"batch-check": 3.0, "script-check": 0.0}, HINT)
    path = course.notebook("autograded", NAME, "ada")
    path.chmod(0o644)
    path.write_text("[" * 100_000)
    done = command("stats", NAME, "--to", str(tmp_path / "out.html"))
    assert done.returncode == 0, done.stderr
    exercises, hints = tables(tmp_path / "out.html")
    assert exercises[0]["full"] == "1" and hints[0]["fired"] == "0"
