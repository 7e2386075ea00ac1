"""An author's own labs: built, released and graded from a folder outside the checkout."""

import json

import pytest

from lab import cli
from labcore import own_labs, shipping, workspace
from labcore.errors import LabError
from labkit.build import read
from labkit.build.cli import build
from labkit.cells import Role
from tests.labkit.build.conftest import SAMPLE

MUTANT = '# %% [raw] tags=["mutant"] answer="global-batch" hint="nobody adds"'
LACKING = SAMPLE.replace(SAMPLE[SAMPLE.index(MUTANT):SAMPLE.index('# %% tags=["check-setup"]')], "")
SOURCE = "grader/source/90_sample/90_sample.ipynb"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with the sample lab; LAB_LABS is taken back at the end."""
    monkeypatch.setenv(own_labs.VARIABLE, "")
    folder = tmp_path / "mine"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "sample.svg").write_text("<svg/>")
    (folder / "solutions").mkdir()
    (folder / "solutions" / "90_sample.py").write_text(SAMPLE)
    return folder


@pytest.fixture
def course(own, tmp_path):
    from grader.course import Course

    made = Course(tmp_path / "course")
    made.make()
    return made


def checkout():
    return {path: path.stat().st_mtime_ns for folder in ("solutions", "notebooks", "grader")
            for path in (workspace.CHECKOUT / folder).rglob("*")
            if path.suffix in (".py", ".ipynb")}


def test_a_lab_is_built_beside_its_source_and_the_checkout_stays(own, capsys):
    before = checkout()
    assert cli.main(["build", "--labs", str(own)]) == 0
    assert capsys.readouterr().out.split() == [
        SOURCE, "notebooks/90_sample.ipynb", "notebooks/checks/90_sample.json",
        "notebooks/worked/90_sample.ipynb"]
    assert (own / SOURCE).is_file() and checkout() == before
    assert cli.main(["build", "--check", "--labs", str(own)]) == 0


def test_the_variable_names_the_folder_as_well(own, monkeypatch):
    monkeypatch.setenv(own_labs.VARIABLE, str(own))
    assert cli.main(["build"]) == 0
    assert (own / SOURCE).is_file()


def test_a_folder_that_is_not_there(own, capsys):
    assert cli.main(["build", "--labs", str(own / "no")]) == 1
    assert "no such folder" in capsys.readouterr().err


def test_a_course_takes_the_lab_and_remembers_where_it_came_from(own, course, monkeypatch):
    build(own)
    with monkeypatch.context() as patch:
        patch.setenv(own_labs.VARIABLE, str(own))
        assert "90_sample" in course.labs() and course.copy_source("90_sample")
    assert "90_sample" in course.labs() and not course.copy_source("90_sample")
    (own / "solutions" / "90_sample.py").write_text(SAMPLE.replace("lab may hold", "lab may have"))
    build(own)
    assert course.copy_source("90_sample")
    assert "may have" in course.notebook("source", "90_sample").read_text()


def test_a_lab_that_has_the_name_of_one_of_the_courses(own, course, monkeypatch):
    from grader.course import Course

    (own / "grader" / "source" / "00_welcome").mkdir(parents=True)
    monkeypatch.setenv(own_labs.VARIABLE, str(own))
    with pytest.raises(LabError, match="both have a lab 00_welcome: give yours another name"):
        Course(course.root).source_of("00_welcome")


def test_a_stale_lab_is_not_released(own, course, monkeypatch):
    from grader.nbgrader_plugin.assign import require_built

    build(own)
    monkeypatch.setenv(own_labs.VARIABLE, str(own))
    require_built(course, "90_sample")
    (own / "solutions" / "90_sample.py").write_text(SAMPLE.replace("lab may hold", "lab may have"))
    with pytest.raises(LabError, match=f"lab build 90_sample --labs {own}"):
        require_built(course, "90_sample")


@pytest.mark.slow
def test_a_release_has_the_checks_beside_the_notebook_and_no_sandbox_gets_them(
        own, course, monkeypatch):
    from grader.nbgrader_plugin import assign
    from grader.run import lab_plan

    build(own)
    monkeypatch.setenv(own_labs.VARIABLE, str(own))
    assert assign.release(course, "90_sample")
    released = course.notebook("release", "90_sample")
    assert released.read_text() == (own / "notebooks" / "90_sample.ipynb").read_text()
    checks = released.with_name("90_sample.checks.json")
    assert checks.read_text() == (own / "notebooks" / "checks" / "90_sample.json").read_text()
    plan = lab_plan.read(course, "90_sample")
    assert plan.files == {}
    assert "### BEGIN HIDDEN TESTS" in plan.of(Role.CHECK)[0].source


def test_a_draft_is_built_and_marked_and_not_released(own, course, monkeypatch, capsys):
    from grader.nbgrader_plugin import assign

    path = own / "solutions" / "90_sample.py"
    path.write_text(LACKING)
    with pytest.raises(LabError, match="1 mutants; give it at least 2"):
        read(path)
    assert cli.main(["build", "--draft", "--labs", str(own)]) == 0
    said = capsys.readouterr().err
    assert f"draft: {path}:" in said and "1 mutants" in said and "no mutant triggers" in said
    marks = json.loads((own / SOURCE).read_text())["metadata"]["lab"]
    assert marks["draft"] is True
    assert cli.main(["build", "--check", "--draft", "--labs", str(own)]) == 0
    monkeypatch.setenv(own_labs.VARIABLE, str(own))
    with pytest.raises(LabError, match="90_sample is a draft"):
        assign.release(course, "90_sample")
    assert not list((course.root / "source").glob("*"))


def test_a_finished_lab_is_no_draft(own):
    build(own, missing=[])
    assert "draft" not in json.loads((own / SOURCE).read_text())["metadata"]["lab"]


def test_a_workspace_gets_the_labs_and_their_figures(own, tmp_path, monkeypatch):
    build(own)
    monkeypatch.setenv(own_labs.VARIABLE, str(own))
    shipping.make_workspace(tmp_path / "home")
    assert (tmp_path / "home" / "notebooks" / "90_sample.ipynb").is_file()
    assert (tmp_path / "home" / "images" / "sample.svg").is_file()
