"""Every lab from its first cell to its last, in a kernel, on a real cluster: what a student sees
who answers all questions right. `make test` runs the short setting (labkit.build.short), `make
stress` the whole."""

import time
from collections.abc import Callable

import nbformat
import pytest
from nbclient import NotebookClient

from corpus_tools import cli as data
from labcore import shipping
from labkit.build import Cell, Role
from labkit.build.notebooks import notebooks, source_path
from labkit.build.short import shortened
from slurmbox.clients import full_environment
from tests.labs.spent import watching
from tests.labs.test_labs import each_lab, lab_of

SECONDS = 60  # the most that a cell of the course may take, and a lab in its short setting
CORES = 2  # on the machine that the minute is meant for
AGAIN = "run this cell again"  # what a cell that waits for a job says when it still runs

pytestmark = pytest.mark.cluster


def said(cell):
    return "".join(output.get("text", "") for output in cell.get("outputs", ()))


def execute(client, cell, index):
    """Run a cell until it has nothing more to wait for, as the lab tells the student to; returns
    the seconds that its longest run took, and all of them."""
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        client.execute_cell(cell, index)
        seconds.append(time.monotonic() - began)
        if AGAIN not in said(cell):
            return max(seconds), sum(seconds)
        assert "sbatch" not in cell.source, f"run again, it submits again: {cell.source}"
    pytest.fail(f"still not over: {cell.source}\n{said(cell)}")


def run(lab, home, source: Callable[[Cell], str], limit=SECONDS
        ) -> list[tuple[float, float, Cell]]:
    """Run all cells of the source notebook, each with the text `source` gives and for up to `limit`
    seconds. Returns for each code cell the seconds of its longest run, of all its runs, and the
    cell."""
    notebook = nbformat.reads(notebooks(lab)[source_path(lab.name)], as_version=4)
    cells = [cell for cell in lab.cells if cell.role is not Role.MUTANT]
    client = NotebookClient(notebook, timeout=limit, kernel_name="python3",
                            resources={"metadata": {"path": str(home / "notebooks")}})
    taken = []
    with client.setup_kernel(env=full_environment(home)):
        for index, (made, cell) in enumerate(zip(notebook.cells, cells, strict=True)):
            if cell.kind == "code":
                made.source = source(cell)
                taken.append((*execute(client, made, index), cell))
    ran = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    assert len(ran) == len(lab.of(Role.CHECK))
    longest = sorted(taken, key=lambda one: one[0])[-8:]
    print(f"{lab.name}: {sum(seconds for _, seconds, _ in taken):.0f} s; the longest cells: "
          + ", ".join(f"{seconds:.1f} s in line {cell.line}" for seconds, _, cell in longest[::-1]))
    return taken


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_lab
def test_a_lab_runs_in_its_short_setting_within_a_minute(path, course):
    """On two cores: their seconds are counted, so this holds however crowded the machine is."""
    with watching(course.home) as spent:
        run(lab_of(path), course.home, shortened, limit=None)
    print(f"{path.stem}: {spent.seconds:.0f} of {CORES * SECONDS} s of processors")
    assert 1 < spent.seconds < CORES * SECONDS, (
        "give long cells a short setting: docs/writing-labs.md")


@pytest.fixture(scope="module")
def home(make_cluster):
    made = make_cluster().home
    shipping.make_workspace(made)
    data.ensure(made, lambda line: None)
    return made


@pytest.mark.stress
@pytest.mark.timeout(1500)
@each_lab
def test_a_lab_runs_from_top_to_bottom(path, home):
    for longest, _, cell in run(lab_of(path), home, lambda cell: cell.source):
        assert longest < SECONDS, cell.source
