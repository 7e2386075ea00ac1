"""Stored outputs: `lab build` merges them into the worked notebook, and stale ones are found."""

import json

import pytest

from labcore.errors import LabError
from labkit.build import outputs, read
from labkit.build.cli import build
from labkit.build.notebooks import worked_notebook
from tests.labkit.build.conftest import line_of

SOURCE, RELEASE, WORKED = (f"{folder}/90_sample.ipynb" for folder in
                           ("grader/source/90_sample", "notebooks", "notebooks/worked"))
CHECKS, OUTPUTS = "notebooks/checks/90_sample.json", "notebooks/outputs/90_sample.json"
COMMENT = ("# !echo the queue is empty", "# !echo the queue is full")


@pytest.fixture
def stored(author, root):
    """The sample lab, built, and outputs of all its cells: each prints its own ID."""
    sources = worked_notebook(read(author()))[1]
    build(root)
    cells = tuple(outputs.CellOutputs(name, source.digest, [
        {"output_type": "execute_result", "data": {"text/plain": name}, "metadata": {}}])
        for name, source in sources.items())
    made = outputs.LabOutputs("2026-01-31", "2 CPU cores", cells)
    (root / OUTPUTS).parent.mkdir()
    (root / OUTPUTS).write_text(made.text)
    return made


def shown(root):
    """Return what each code cell of the worked notebook shows, by its ID."""
    return {cell["id"]: "".join(cell["outputs"][0]["data"]["text/plain"])
            for cell in json.loads((root / WORKED).read_text())["cells"] if cell.get("outputs")}


def stale(root):
    lab = read(root / "solutions" / "90_sample.py")
    return outputs.stale(lab, worked_notebook(lab)[1], outputs.read(root, lab.name))


def test_only_the_worked_notebook_has_outputs_and_says_where_they_are_from(stored, root):
    before = {path: (root / path).read_bytes() for path in (SOURCE, RELEASE, CHECKS)}
    assert build(root) == [WORKED]
    assert shown(root) == {cell.id: cell.id for cell in stored.cells}
    assert "run on 2026-01-31, on 2 CPU cores" in (root / WORKED).read_text()
    assert {path: (root / path).read_bytes() for path in before} == before
    (root / WORKED).unlink()
    assert build(root) == [WORKED] and shown(root) and stale(root) == []


@pytest.mark.parametrize(("change", "gone"), [
    (COMMENT, "explore-"),
    (("    return math.prod((micro_batch, ranks))", "    return ranks * micro_batch"),
     "global-batch")])
def test_a_changed_cell_is_stale_and_shows_no_output(stored, author, root, change, gone):
    path = author(change)
    build(root)
    (line, *rest) = stale(root)
    number = line_of(path, change[1])
    assert f"the source of cell {gone}" in line and "is newer than its output" in line
    assert abs(int(line.split(":")[1]) - number) < 5 and line.startswith("solutions/90_sample.py:")
    assert len(rest) == (gone == "explore-")  # its ID is another one now
    assert len(shown(root)) == len(stored.cells) - 1 and gone not in shown(root)


def test_a_changed_text_and_a_changed_check_leave_outputs_as_they_are(stored, author, root):
    author(("# Everything that a lab may hold.", "# All that a lab may hold."),
           ("expected=[16, 2]", "expected=[2 * 8, 2]"), ("check.draw(20,", "check.draw(21,"))
    assert stale(root) == []


def test_a_lab_that_never_ran_has_no_outputs(author, root):
    author()
    assert stale(root) == ["solutions/90_sample.py: no outputs"]


def test_without_worked_notebooks_their_outputs_go_too(stored, root):
    build(root)
    assert build(root, worked=False) == [SOURCE, RELEASE, OUTPUTS, WORKED]
    assert not (root / OUTPUTS).exists() and not (root / "notebooks" / "outputs").exists()


def test_outputs_of_a_lab_that_is_gone_go_too(stored, root):
    (root / "notebooks" / "outputs" / "91_old.json").write_text("{}")
    assert build(root, write=False) == ["notebooks/outputs/91_old.json", WORKED]


@pytest.mark.parametrize("text", ["", "[]", '{"date": "", "machine": ""}', '{"date": "", '
                                  '"machine": "", "cells": [{"id": "x"}]}'])
def test_a_damaged_file_is_named(stored, root, text):
    (root / OUTPUTS).write_text(text)
    with pytest.raises(LabError, match=r"90_sample\.json is not a file that `lab outputs` wrote"):
        build(root)
    assert (root / OUTPUTS).read_text() == text
