"""`lab outputs`: run the worked notebooks whose outputs are stale, and store their outputs."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import own_labs, workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from labkit.build.lab import Lab
    from labkit.build.outputs import LabOutputs

CELL_SECONDS = 600  # a cell that runs longer hangs
CODES = re.compile(r"\x1b\[[0-9;]*m")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "run the worked notebooks whose outputs are stale, and store their outputs"
    outputs = subparsers.add_parser("outputs", help=text, description=text)
    outputs.add_argument("labs", nargs="*", metavar="LAB", help="for example 03 (default: all)")
    outputs.add_argument("--check", action="store_true",
                         help="run nothing; list stale cells, and exit with 1 if there are any")
    outputs.add_argument("--force", action="store_true",
                         help="also run labs whose outputs are up to date")
    own_labs.add_option(outputs)
    outputs.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from labkit.build.cli import build

    root = own_labs.resolve_folder(arguments.folder) or workspace.CHECKOUT
    labs: list[Lab] = []
    changed = build(root, arguments.labs, write=not arguments.check, labs=labs)
    if changed and not arguments.check:
        print("\n".join(changed))
    stale = {lab.name: stale_cells(root, lab) for lab in labs}
    wanted = [lab for lab in labs if stale[lab.name] or arguments.force]
    if arguments.check:
        for lab in labs:
            print("\n".join(stale[lab.name] or [f"{lab.name}: up to date"]))
        if any(stale.values()):
            print(f"run `{command(name for name in stale if stale[name])}`")
        return 1 if any(stale.values()) else 0
    if not wanted:
        print("all outputs are up to date")
        return 0
    return run_labs(root, wanted)


def command(names) -> str:
    """Return the command that makes the outputs of these labs."""
    return " ".join(["lab outputs", *(name.partition("_")[0] for name in names)])


def stale_cells(root: Path, lab: Lab) -> list[str]:
    """Return a line for each cell of a lab whose source is newer than its output."""
    from labkit.build import outputs
    from labkit.build.notebooks import worked_notebook

    return outputs.stale(lab, worked_notebook(lab)[1], outputs.read(root, lab.name))


def run_labs(root: Path, labs: list[Lab]) -> int:
    """Run labs one after the other, store their outputs, and build their worked notebooks. A lab
    that fails keeps its old outputs.

    Args:
        root: the folder with solutions/.
    """
    from corpus_tools import cli as data
    from lab.outputs.running import as_from_a_terminal
    from labcore.atomic import write_atomic
    from labkit.build.cli import build
    from labkit.build.outputs import path_of
    from slurmbox.install import require_slurm

    require_slurm()
    failed = []
    with tempfile.TemporaryDirectory(prefix="lab-data-") as folder, as_from_a_terminal():
        print("making the course's data", flush=True)
        data.ensure(Path(folder), lambda line: None)
        for lab in labs:
            began = time.monotonic()
            try:
                text = run_lab(lab, Path(folder) / "data").text
                require_small(lab, text)
            except LabError as error:
                failed.append(lab)
                print(f"lab: error: {error}", file=sys.stderr, flush=True)
                continue
            path = root / path_of(lab.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode())
            print(f"{path_of(lab.name)}: {len(text) / 1000:.0f} kB, after "
                  f"{time.monotonic() - began:.0f} s", flush=True)
    for name in build(root, [lab.name for lab in labs]):
        print(name)
    return 1 if failed else 0


def run_lab(lab: Lab, data: Path) -> LabOutputs:
    """Run a lab's worked notebook on a cluster of its own, and return its outputs.

    Args:
        data: the folder with the course's data.

    Raises:
        LabError: a cell raised an error, or a check did not pass.
    """
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from lab.outputs.cleaning import cleaned
    from lab.outputs.running import execute, kernel, printed, temporary_workspace
    from labkit.build.notebooks import worked_notebook
    from labkit.build.outputs import CellOutputs, LabOutputs

    notebook, sources = worked_notebook(lab)
    checks = {check.grade_id for check in lab.checks.values()}
    made = []
    with (temporary_workspace(lab.name, data, lambda line: None) as home,
          kernel(notebook, home, CELL_SECONDS) as client):
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            show_progress(lab, index, len(notebook.cells))
            # As JupyterLab does: by its ID, a check knows an answer from a cell of one's own.
            client.kc.session.metadata = {"cellId": cell.id}
            try:
                execute(client, cell, index)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                raise refusal(lab, cell, "the cell failed", str(error)) from error
            if cell.id in checks and not passed(cell):
                raise refusal(lab, cell, "the check does not pass", printed(cell))
            made.append(CellOutputs(cell.id, sources[cell.id].digest, cleaned(cell.outputs, home)))
    return LabOutputs(datetime.date.today().isoformat(), machine(), tuple(made))


def refusal(lab: Lab, cell: NotebookNode, what: str, text: str) -> LabError:
    """Return the error for a cell that did not run as it should, with the end of what it said."""
    last = CODES.sub("", text).strip().splitlines()[-8:]
    head = f"{lab.name}, cell {cell.id}: {what}, so no outputs of this lab are stored"
    return LabError("\n  ".join([head, *last]))


def show_progress(lab: Lab, index: int, count: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{lab.name}: cell {index + 1} of {count} ", end="\r", flush=True)


def passed(cell: NotebookNode) -> bool:
    """Return whether a check cell's last line is a verdict that the check passed."""
    from lab.outputs.running import printed

    return CODES.sub("", printed(cell)).rstrip("\n").rpartition("\n")[2].startswith("✓")


def require_small(lab: Lab, text: str) -> None:
    """Raise LabError if a lab's outputs are too large for the repository."""
    import json

    from labkit.build.outputs import MOST_OF_A_LAB

    if len(text.encode()) <= MOST_OF_A_LAB:
        return
    cells = sorted(json.loads(text)["cells"], key=lambda cell: -len(json.dumps(cell)))[:3]
    sizes = ", ".join(f"{cell['id']} ({len(json.dumps(cell)) / 1000:.0f} kB)" for cell in cells)
    raise LabError(f"{lab.name}: its outputs take {len(text.encode()) / 1000:.0f} kB, more than "
                   f"the limit of {MOST_OF_A_LAB / 1000:.0f} kB; shorten the largest, those of "
                   f"{sizes}")


def machine() -> str:
    """Return the number and model of this machine's cores, in words."""
    cores = len(os.sched_getaffinity(0))
    try:
        models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(),
                            re.MULTILINE)
    except OSError:
        models = []
    of = f" of an {re.sub(r'[(](R|TM)[)]', '', models[0]).strip()}" if models else ""
    return f"{cores} CPU core{'s' if cores != 1 else ''}{of}"
