"""`lab similar`, on submissions of which some are broken."""

from __future__ import annotations

import json
import time

import nbformat
import pytest

from grader.similarity import reading
from tests.grader.collect.conftest import zipped
from tests.grader.conftest import submit
from tests.grader.similarity.test_similar import ONE, OTHER, RENAMED
from tests.grader.small_lab import NAME, answered


@pytest.fixture
def handed_in(course, released):
    for who, text in {"ada": ONE, "grace": RENAMED, "jm1": OTHER}.items():
        submit(course, who, answered(released, text))
    return course


def test_the_command_writes_a_page_and_changes_no_grade(handed_in, command, tmp_path):
    path = handed_in.notebook("submitted", NAME, "jm2")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    before = (handed_in.root / "gradebook.db").read_bytes()
    done = command("similar", NAME, "--to", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "3 submissions: 1 group with 2 students over 60% alike" in done.stdout
    assert "left out: jm2: " in done.stderr
    assert "ada, grace" in (tmp_path / "r.html").read_text()
    assert (handed_in.root / "gradebook.db").read_bytes() == before
    assert command("similar", "nope").returncode == 1
    assert command("similar", NAME, "--over", "200").returncode == 1


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), RecursionError("deep")],
                         ids=lambda error: type(error).__name__)
def test_one_broken_submission_does_not_end_the_others(handed_in, command, monkeypatch, error):
    real = reading.rebuild

    def rebuild(release, submitted):
        if any("".join(cell["source"]) == OTHER for cell in submitted["cells"]):
            raise error
        return real(release, submitted)

    monkeypatch.setattr(reading, "rebuild", rebuild)
    done = command("similar", NAME)
    assert done.returncode == 0, done.stderr
    assert f"left out: jm1: {type(error).__name__}" in done.stderr
    assert "2 submissions: 1 group with" in done.stdout


def test_one_slow_submission_does_not_end_the_others(handed_in, command, monkeypatch):
    real = reading.Answers.of

    def of(texts, release):
        while OTHER in texts.values():
            time.sleep(0.01)
        return real(texts, release)

    monkeypatch.setattr(reading, "SECONDS", 0.2)
    monkeypatch.setattr(reading.Answers, "of", of)
    done = command("similar", NAME)
    assert done.returncode == 0, done.stderr
    assert "left out: jm1: it takes more than" in done.stderr
    assert "2 submissions: 1 group with" in done.stdout


@pytest.mark.parametrize("layout", ["submitted/eve/{lab}/{lab}.ipynb", "eve/{lab}.ipynb"])
@pytest.mark.parametrize("packed", [False, True])
def test_last_years_submissions_are_compared(handed_in, released, command, tmp_path, layout,
                                             packed):
    name = layout.format(lab=NAME)
    content = nbformat.writes(answered(released, OTHER)).encode()
    files = {name: content, name.replace("eve", "bad"): b"{",
             name.replace("eve", "other").replace(NAME, "91_other"): content}
    if packed:
        folder = zipped(tmp_path / "y2025", files)
    else:
        folder = tmp_path / "y2025"
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text)
    done = command("similar", NAME, "--with", str(folder), "--to", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "1 earlier submission: 1 student over 60% like one of them" in done.stdout
    assert f"left out: {folder}: bad: " in done.stderr
    assert f"{folder}: eve" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("name, says", [
    ("gone", "no such file or folder"), ("empty", "no STUDENT/"),
    ("file", "not a valid zip or tar")])
def test_a_bad_folder_is_named(handed_in, command, tmp_path, name, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text(json.dumps("x"))
    done = command("similar", NAME, "--with", str(tmp_path / name))
    assert done.returncode == 1 and says in done.stderr


def test_who_hands_in_the_worked_solution_is_named(handed_in, command, monkeypatch, tmp_path):
    source = handed_in.notebook("source", NAME)
    notebook = nbformat.read(source, as_version=4)
    cell = next(cell for cell in notebook.cells
                if cell.metadata.get("nbgrader", {}).get("grade_id") == "batch")
    cell.source = f"### BEGIN SOLUTION\n{ONE}\n### END SOLUTION"
    nbformat.write(notebook, source)
    done = command("similar", NAME, "--to", str(tmp_path / "r.html"))
    assert "2 like the worked solution" in done.stdout, done.stderr
    assert "the worked solution" in (tmp_path / "r.html").read_text()
