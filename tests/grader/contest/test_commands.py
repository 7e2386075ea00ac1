"""`lab contest grade` and `lab contest table`, as an instructor types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.contest import attempts, secret, standings
from grader.contest.grading import register_submissions
from grader.course.roster import Person
from lab import cli
from tests.grader.conftest import run

SHIPPED = """
from pipeline_schedules import BUILT_IN, to_text
def schedule(case):
    print("SECRET", case)
    return to_text(BUILT_IN["1f1b"](case["stages"], case["micro_batches"]))
"""
LEAK = """
def schedule(case):
    raise ValueError(f"SECRET {case}")
"""


@pytest.mark.slow
def test_a_class_from_files_to_a_table_killed_in_between(course, contest, submit):
    for student in ("ada", "bob", "carl"):
        submit(student, SHIPPED + f"# {student}")
    submit("eve", LEAK)
    submit("fay", b"\xff")
    folder = attempts.results(course, contest) / "attempts"
    words = [str(Path(sys.executable).with_name("lab")), "contest", "grade", contest.name]
    killed = subprocess.Popen([*words, "--workers", "1"], stdout=subprocess.DEVNULL,
                              env=os.environ | {"LAB_COURSE": str(course.root)})
    deadline = time.monotonic() + 120
    while not (folder / "ada.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = (folder / "ada.json").read_text()
    done = run(course, "contest", "grade", contest.name)
    assert done.returncode == 0, done.stderr
    assert (folder / "ada.json").read_text() == before  # what was played is left alone
    assert "ada:" not in done.stdout
    assert "fay: refused: pipelines.py: it is not UTF-8" in done.stdout
    assert not list(folder.glob(".*"))
    for student in ("ada", "bob", "carl"):
        (attempt,) = attempts.read(course, contest, student)[0].values()
        assert not any(one.kind for one in attempt.outcomes)
        assert "SECRET" not in json.dumps([vars(one) for one in attempt.outcomes])
    done = run(course, "contest", "table", contest.name, "--pseudonyms", "--to", "public")
    assert "5 students and 8 ghosts" in done.stdout
    named = secret.pseudonyms(course, ["ada", "eve"])
    shown = "".join(path.read_text() for path in (course.root / "public").iterdir())
    assert named["ada"] in shown and "SECRET" not in shown and "12 error" in shown
    assert sorted(path.name for path in (course.root / "public").iterdir()) == [
        "pipelines-pseudonyms.csv", "pipelines-pseudonyms.html"]


@pytest.mark.parametrize(("words", "reason"), [
    (["grade", "pipeline"], "no contest pipeline; available: pipelines"),
    (["table", "pipeline"], "no contest pipeline; available: pipelines"),
    (["collect", "pipelines", "absent.zip"], "absent.zip"),
    (["collect", "pipelines", ".", "--received", "2999-01-01 00:00 UTC"], "is in the future"),
    (["grade", "pipelines"], "nothing to grade: put each student's file at")])
def test_bad_input_is_named(course, monkeypatch, capsys, words, reason):
    monkeypatch.setenv("LAB_COURSE", str(course.root))
    if words[0] == "collect":
        words = [*words, "--as-is"]
    assert cli.main(["contest", *words]) == 1
    assert reason in capsys.readouterr().err


def test_students_have_the_names_of_the_roster(course, contest, submit, monkeypatch, capsys):
    monkeypatch.setenv("LAB_COURSE", str(course.root))
    monkeypatch.setattr(standings, "roster_of", lambda course: [Person("ada", "Ada", "<b>L")])
    submit("ada", SHIPPED)
    submit("bob", SHIPPED)
    register_submissions(course, contest)
    assert cli.main(["contest", "table", contest.name]) == 0
    folder = attempts.results(course, contest)
    assert ">Ada &lt;b&gt;L (ada)<" in (folder / "pipelines.html").read_text()
    assert ",bob,,,,,,,,,,not played yet" in (folder / "pipelines.csv").read_text()


def test_a_table_can_be_made_before_anybody_submitted(course, contest, monkeypatch, capsys):
    monkeypatch.setenv("LAB_COURSE", str(course.root))
    assert cli.main(["contest", "table", contest.name]) == 0
    assert "0 students and 8 ghosts" in capsys.readouterr().out
    html = (attempts.results(course, contest) / "pipelines.html").read_text()
    assert "1F1B (ghost)" in html
