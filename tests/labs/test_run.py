"""Every lab from its first cell to its last, in a kernel, on a real cluster: what a student sees
who answers every question correctly.

`make test` runs the short setting (labkit.build.metadata) with warm starts (tests.labs.warm) and
prints what each lab cost. `make stress` runs every cell as students do, and checks both budgets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from corpus_tools import cli as data
from lab.outputs.running import execute, kernel, printed
from labcore import shipping
from labcore.workspace import CHECKOUT
from labkit.build import Cell, Lab, Role
from labkit.build.metadata import shortened
from labkit.build.notebooks import source_path
from tests.labs.graded import COLORS
from tests.labs.leaks import GUESSED, KNOWN, ON_THIS_MACHINE, above, leaks, predictions
from tests.labs.report import CPU_SECONDS, PROPERTY, line
from tests.labs.spent import Spent, watching
from tests.labs.test_labs import each_lab, lab_of
from tests.labs.warm.launch import Warm, servers

SECONDS = 60  # the most that a cell of the course may take
VERDICT = re.compile(r"Your guess was .*")  # how far off an earlier guess was says nothing

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Taken:
    """The cost of running a code cell.

    Attributes:
        cell: the cell of the lab's source.
        longest: elapsed seconds of its longest run.
        cpu: CPU-seconds of all processes of the lab meanwhile, its jobs included.
    """

    cell: Cell
    longest: float
    cpu: float


def given_away(lab: Lab, ran: Sequence[tuple[Cell, str]]) -> dict[str, list[str]]:
    """Return the predictions whose measured value stands above the guess, in text or output.

    Args:
        lab: the lab.
        ran: its cells, and what each one printed.
    """
    measured = {what: float(value.replace(",", ""))
                for _, text in ran for what, value in GUESSED.findall(text)}
    found = {}
    for one in predictions(lab):
        if one.what in measured and not any(unit in one.what for unit in ON_THIS_MACHINE):
            printed = [VERDICT.sub("", text) for cell, text in ran if cell.line < one.cell.line
                       and cell.role is Role.EXPLORE]
            found[one.what] = leaks(one.what, measured[one.what], [*above(lab, one), *printed])
    return {what: lines for what, lines in found.items()
            if lines and (lab.name, what) not in KNOWN}


def run(lab: Lab, home: Path, source: Callable[[Cell], str], spent: Spent,
        limit: int | None = SECONDS, command: Sequence[str] = ()) -> list[Taken]:
    """Run all cells of the source notebook, and return what each code cell took.

    Args:
        lab: the lab to run.
        home: the workspace.
        source: gives the text that runs for a cell.
        spent: counts the CPU-seconds of the workspace.
        limit: seconds after which a cell fails; None waits forever.
        command: starts the kernel in place of `python -m ipykernel_launcher`.
    """
    notebook = nbformat.read(CHECKOUT / source_path(lab.name), as_version=4)
    cells = [cell for cell in lab.cells if cell.role is not Role.MUTANT]
    taken, ran = [], []
    with kernel(notebook, home, limit, command) as client:
        for index, (made, cell) in enumerate(zip(notebook.cells, cells, strict=True)):
            if cell.kind == "code":
                made.source, before = source(cell), spent.seconds
                longest = execute(client, made, index)
                taken.append(Taken(cell, longest, spent.seconds - before))
                ran.append((cell, COLORS.sub("", printed(made))))
            if cell.role is Role.CHECK:
                lines = COLORS.sub("", printed(made)).splitlines()
                assert lines and lines[-1].startswith("✓"), f"no verdict: {cell.grade_id}: {lines}"
    assert given_away(lab, ran) == {}
    checked = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    assert len(checked) == len(lab.of(Role.CHECK))
    return taken


@pytest.fixture(scope="module")
def warm(course) -> Iterator[Warm]:
    with servers(course) as started, started.commands():
        yield started


def run_short(path: Path, home: Path, warm: Warm) -> tuple[float, str]:
    """Run a lab in its short setting. Return its CPU-seconds and a line for the report."""
    warm.forget()
    began = time.monotonic()
    with watching(home) as spent:
        taken = run(lab_of(path), home, shortened, spent, limit=None,
                    command=warm.kernel)
    cells = [(one.cpu, one.cell.line) for one in taken]
    return spent.seconds, line(path.stem, spent.seconds, time.monotonic() - began,
                               warm.launched(), cells)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@each_lab
def test_a_lab_runs_in_its_short_setting(path, course, warm, record_property):
    seconds, text = run_short(path, course.home, warm)
    record_property(PROPERTY, text)
    assert seconds > 1, "the lab's processes were not counted"


@pytest.mark.stress
@pytest.mark.timeout(1800)
@each_lab
def test_the_short_setting_keeps_its_budget(path, course, warm, record_property):
    seconds, text = run_short(path, course.home, warm)
    record_property(PROPERTY, text)
    assert 1 < seconds <= CPU_SECONDS, f"shorten its long cells: docs/writing-labs.md\n{text}"


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
    with watching(home) as spent:
        taken = run(lab_of(path), home, lambda cell: cell.source, spent)
    for one in taken:
        assert one.longest < SECONDS, one.cell.source
