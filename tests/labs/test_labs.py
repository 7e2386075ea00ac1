"""Every lab of solutions/: its notebooks are those of its source, its checks accept the reference
and reject everything that is known to be wrong."""

import json
import re
from functools import cache

import pytest

from labcore import own_labs, shipping, workspace
from labkit.build import Role, outputs, read, reading
from labkit.build.cli import build
from labkit.build.notebooks import notebooks, release_path, worked_notebook
from labkit.build.shortcuts import similar
from labkit.build.stubs import BEGIN, answered, unanswered
from tests.labs import graded

# With LAB_LABS=DIR, an author's own labs are tested in place of the course's.
ROOT = own_labs.folder() or workspace.CHECKOUT
SOLUTIONS = sorted((ROOT / "solutions").glob("*.py"))
each_lab = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
# For what the same code does for every lab, and each lab is also shown to do elsewhere: `make test`
# has the first lab, and `make stress` all.
sample_labs = pytest.mark.parametrize("path", [
    *SOLUTIONS[:1], *(pytest.param(path, marks=pytest.mark.stress) for path in SOLUTIONS[1:])],
    ids=lambda path: path.stem)
# What tests/labs/test_run.py and tests/grader/test_labs.py show for each of the course's labs.
shown_elsewhere = each_lab if own_labs.folder() else sample_labs
lab_of = cache(read)


@cache
def released_of(path):
    """The text of a lab's release. Two tests look at it."""
    lab = lab_of(path)
    return notebooks(lab)[release_path(lab.name)]


MUTANT = re.compile(r'^# %% \[raw\].*? (?:mutant|answer)="([^"]+)"', re.MULTILINE)


def mutated(path):
    """The answers with mutants. Reading a whole lab takes a second, and each worker of the tests
    needs these names."""
    return dict.fromkeys(MUTANT.findall(path.read_text()))


each_answer = pytest.mark.parametrize(("path", "answer"), [
    pytest.param(path, name, id=f"{path.stem}-{name}")
    for path in SOLUTIONS for name in mutated(path)])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(made)
    return made


def released(cell):
    return unanswered(cell.source)


def test_there_are_labs():
    assert SOLUTIONS


@pytest.mark.slow
def test_no_notebook_is_stale(monkeypatch):
    labs = {path: lab_of(path) for path in SOLUTIONS}  # half of the cost, shared with other tests
    monkeypatch.setattr(reading, "read_into", lambda path, problems: labs[path])
    stale = build(ROOT, write=False)
    assert not stale, "run `lab build`"


@pytest.mark.slow
@each_lab
def test_no_output_is_older_than_its_cell(path):
    lab = lab_of(path)
    stored = outputs.read(ROOT, lab.name)
    if stored is None and own_labs.folder():
        pytest.skip("an author's own lab may have no outputs")
    stale = outputs.stale(lab, worked_notebook(lab)[1], stored)
    assert not stale, "\n".join([*stale, f"run `lab outputs {lab.name[:2]}`"])
    assert (ROOT / outputs.path_of(lab.name)).stat().st_size <= outputs.MOST_OF_A_LAB


@pytest.mark.slow
@shown_elsewhere  # the first with this seed, and the second with another one
@pytest.mark.parametrize("seed", ["notebook", *(
    pytest.param(seed, marks=pytest.mark.stress) for seed in ("one", "two", "three"))])
def test_the_reference_has_full_marks(path, home, seed, monkeypatch):
    monkeypatch.setenv("LAB_CHECK_SEED", seed)
    outcome = graded.run(lab_of(path), home)
    assert not outcome.answers
    assert set(outcome.checks) == set(lab_of(path).checks)
    assert {name: graded.text(error) for name, error in outcome.checks.items() if error} == {}


@pytest.mark.slow
@each_lab
def test_the_untouched_release_has_no_marks_and_says_what_to_do(path, home):
    lab = lab_of(path)
    outcome = graded.run(lab, home, released)
    assert outcome.failed() == set(lab.checks)
    for name, cell in lab.checks.items():
        said = graded.text(outcome.checks[name])
        if isinstance(outcome.checks[name], NameError):  # then the answer's own cell has said it
            said = " ".join(str(outcome.answers[answer]) for answer in lab.answers_of(cell))
        assert "Your turn" in said or "waits for your answer" in said, (name, said)


@pytest.mark.slow
@each_answer
def test_every_mutant_is_rejected_with_its_hint(path, answer, home):
    assert graded.unproven(lab_of(path), home, answer, thorough=False) == []


@each_lab
def test_no_mutants_are_overlooked(path):
    found = {name for name, mutants in lab_of(path).mutants.items() if mutants}
    assert found == {*mutated(path)}


@pytest.mark.stress  # seconds for each mutant of lab 04's ddp
@each_answer
def test_no_other_check_or_part_breaks_on_a_mutant(path, answer, home):
    assert graded.unproven(lab_of(path), home, answer) == []


@each_lab
def test_no_check_needs_an_answer_below_it(path):
    lab = lab_of(path)
    late = {(check.grade_id, name) for place, check in enumerate(lab.cells)
            if check.role is Role.CHECK for name in lab.answers_of(check)
            if lab.cells.index(lab.answers[name]) > place}
    assert not late


@each_lab
def test_no_answer_resembles_a_function_without_a_mask(path):
    assert similar(lab_of(path)) == []


@each_lab
def test_the_release_holds_neither_answers_nor_hidden_tests(path):
    lab = lab_of(path)
    cells = json.loads(released_of(path))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    for word in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS"):
        assert word not in text
    for cell in lab.of(Role.ANSWER):
        secret = set(map(str.strip, answered(cell.source).split("\n")))
        secret -= set(map(str.strip, unanswered(cell.source).split("\n")))
        (shown,) = [made for made in cells if made["id"] == cell.grade_id]
        lines = {line.strip() for line in "".join(shown["source"]).split("\n")}
        assert BEGIN in cell.source and secret and not secret & lines


@each_lab
def test_every_exercise_with_a_check_leads_to_the_worked_notebook(path):
    lab = lab_of(path)
    release = released_of(path)
    assert release.count("*Stuck?") >= 1
    assert f"worked/{lab.name}.ipynb#" in release
    assert "*Stuck?" not in notebooks(lab, worked=False)[release_path(lab.name)]
