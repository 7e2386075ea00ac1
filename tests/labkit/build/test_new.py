"""`lab new`: the lab that it writes builds, and is graded."""

import json

import nbformat
import pytest

from grader.course import Course, Submission
from grader.run import attempt, lab_plan
from grader.run.settings import Grading
from grader.sandbox import choice
from lab import cli
from labcore import own_labs, shipping
from labcore.workspace import CHECKOUT
from labkit.build import Role, read
from labkit.build.cli import build
from labkit.build.stubs import unanswered
from tests.labs import graded
from tests.labs.conftest import warm_estimates  # noqa: F401

NAME = "20_batches"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("authors") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(own_labs.VARIABLE, "")
        assert cli.main(["new", NAME, "--labs", str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def lab(folder):
    return read(folder / "solutions" / f"{NAME}.py")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(made)
    return made


def test_it_has_an_exercise_of_each_kind_and_a_title(lab):
    source = lab.path.read_text()
    for call in ("value", "function", "raises", "schedule", "script", "figures", "parts"):
        assert f"check.{call}(" in source
    assert lab.cells[0].source.startswith("# Batches\n") and len(lab.of(Role.WRITTEN)) == 1
    assert all(len(mutants) >= 2 for mutants in lab.mutants.values())


@pytest.mark.parametrize("seed", ["notebook", "one"])
def test_the_reference_has_full_marks(lab, home, seed, monkeypatch):
    monkeypatch.setenv("LAB_CHECK_SEED", seed)
    outcome = graded.run(lab, home)
    assert {name: graded.text(error) for name, error in outcome.checks.items() if error} == {}
    assert not outcome.answers


def test_the_untouched_release_has_no_marks(lab, home):
    outcome = graded.run(lab, home, lambda cell: unanswered(cell.source))
    assert outcome.failed() == set(lab.checks)


def test_every_mutant_is_rejected_with_its_hint(lab, home):
    assert graded.unproven(lab, home) == []


def test_it_is_graded_and_its_written_answer_waits_for_a_person(folder, lab, tmp_path, monkeypatch):
    monkeypatch.setenv(own_labs.VARIABLE, str(folder))
    assert len(build(folder)) == 4
    course = Course(tmp_path / "course")
    course.make()
    course.copy_source(NAME)
    for step, path in (("release", folder / "notebooks" / f"{NAME}.ipynb"),
                       ("submitted", course.notebook("source", NAME))):
        place = course.notebook(step, NAME, "ada" if step == "submitted" else ".")
        place.parent.mkdir(parents=True)
        place.write_text(path.read_text())
    made = attempt.grade(Submission(course, NAME, "ada"), lab_plan.read(course, NAME),
                         choice.choose(), Grading(seconds_per_cell=30))
    assert (made.state, made.reason) == ("graded", "")
    assert made.scores == {name: cell.points for name, cell in lab.checks.items()}
    assert "why" not in made.scores and sum(made.scores.values()) == 11
    nbformat.validate(nbformat.from_dict(made.notebook))


TAKEN = {path.name[:2] for path in (CHECKOUT / "solutions").glob("*.py")}
FREE = next(number for number in range(7, 100) if f"{number:02}" not in TAKEN)


@pytest.mark.parametrize(("name", "said"), [
    ("batches", "'batches' is not a lab name: two digits, _, then lowercase letters, digits, or _; "
     "nearest: 21_batches"),
    ("7_B atch", f"nearest: {FREE:02}_b_atch"),
    ("../30_x", "nearest: 30_x"),
    (NAME, "already has the number 20; free: 21_batches"),
    ("03_mine", "03_multi_node.py already has the number 03; free: 21_mine"),
])
def test_names_that_are_refused(folder, name, said, capsys, monkeypatch):
    monkeypatch.setenv(own_labs.VARIABLE, "")
    before = sorted(folder.rglob("*"))
    assert cli.main(["new", name, "--labs", str(folder)]) == 1
    assert said in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_a_folder_that_cannot_be_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(own_labs.VARIABLE, "")
    (tmp_path / "file").write_text("")
    assert cli.main(["new", NAME, "--labs", str(tmp_path / "file")]) == 1
    assert "file" in capsys.readouterr().err


def test_the_template_opens_as_a_notebook(lab):
    import jupytext

    text = lab.path.read_text()
    cells = jupytext.reads(text, "py:percent").cells
    assert json.dumps([cell.metadata for cell in cells]).count('"mutant"') == 12
    saved = jupytext.writes(jupytext.reads(text, "py:percent"), "py:percent")
    assert [line for line in saved.split("\n") if line.startswith("# %%")] == [
        line for line in text.split("\n") if line.startswith("# %%")]
