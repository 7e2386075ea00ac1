"""Every lab from its first cell to its last, in a kernel, on a real cluster: what a student sees
who answers all questions right."""

import os
import sys
import time

import nbformat
import pytest
from nbclient import NotebookClient

from lab import data, workspace
from lab.build import Role, read
from lab.build.notebooks import notebooks, source_path
from lab.cluster.clients import full_environment
from tests.labs.test_labs import each_lab

SECONDS = 60  # the most that a cell of the course may take
AGAIN = "run this cell again"  # what a cell that waits for a job says when it still runs

pytestmark = [pytest.mark.cluster, pytest.mark.stress, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def home(make_cluster):
    made = make_cluster().home
    workspace.make(made)
    data.ensure(made, lambda line: None)
    return made


def said(cell):
    return "".join(output.get("text", "") for output in cell.get("outputs", ()))


@each_lab
def test_a_lab_runs_from_top_to_bottom(path, home):
    lab = read(path)
    notebook = nbformat.reads(notebooks(lab)[source_path(lab.name)], as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                            resources={"metadata": {"path": str(home / "notebooks")}})
    folder = os.path.dirname(sys.executable)
    environment = full_environment(home) | {"LAB_HOME": str(home)}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    seconds = []
    with client.setup_kernel(env=environment):
        for index, cell in enumerate(notebook.cells):
            for _ in range(5):  # as the lab tells the student to
                began = time.monotonic()
                client.execute_cell(cell, index)
                seconds.append(time.monotonic() - began)
                if AGAIN not in said(cell):
                    break
                assert "sbatch" not in cell.source, f"run again, it submits again: {cell.source}"
            else:
                pytest.fail(f"still not over: {cell.source}\n{said(cell)}")
    print(f"{lab.name}: {sum(seconds):.0f} s, the longest cell {max(seconds):.0f} s")
    checks = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    assert len(checks) == len(lab.of(Role.CHECK))
