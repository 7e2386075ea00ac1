"""Run a lab's notebook from top to bottom, as a student does, on a cluster of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.mytrainer.pieces import FOLDER, PIECES
from lab.mytrainer.worked import WORKED_FOLDER
from labcore import shipping, workspace
from labcore.errors import LabError
from labcore.progress import Notify

if TYPE_CHECKING:
    from nbclient import NotebookClient
    from nbformat import NotebookNode

RUNS = 5  # of a cell that waits for a job
AGAIN = "run this cell again"  # what a cell that waits for a job prints while it still runs


def printed(cell: NotebookNode) -> str:
    """Return what a cell printed."""
    return "".join(output.get("text", "") for output in cell.get("outputs", ()))


@contextlib.contextmanager
def kernel(notebook: NotebookNode, home: Path, limit: int | None, command: Sequence[str] = ()
           ) -> Iterator[NotebookClient]:
    """Start a notebook's kernel in a workspace.

    Args:
        notebook: the notebook, whose cells receive their outputs.
        home: the workspace, whose cluster is up.
        limit: seconds after which a cell fails; None waits forever.
        command: starts the kernel in place of `python -m ipykernel_launcher`.
    """
    from nbclient import NotebookClient

    from slurmbox.clients import full_environment

    client = NotebookClient(notebook, timeout=limit, kernel_name="python3",
                            extra_arguments=["--log-level=ERROR"],
                            resources={"metadata": {"path": str(home / "notebooks")}})
    if command:
        client.create_kernel_manager().kernel_spec.argv[:3] = command
    with client.setup_kernel(env=full_environment(home)):
        yield client


def execute(client: NotebookClient, cell: NotebookNode, index: int) -> float:
    """Run a cell until it has nothing more to wait for, as the lab tells the student to. Return
    the elapsed seconds of its longest run.

    Args:
        client: the notebook's client.
        index: the cell's position among the notebook's cells.

    Raises:
        CellExecutionError: the cell raised an error.
        LabError: it still waits, or it waits for a job that it submits itself.
    """
    from nbclient.exceptions import CellExecutionError

    longest = 0.0
    for _ in range(RUNS):
        began = time.monotonic()
        try:
            client.execute_cell(cell, index)
            is_waiting = AGAIN in printed(cell)
        except CellExecutionError as error:
            is_waiting = AGAIN in str(error)  # jobs.wait() stops Run All
            if not is_waiting:
                raise
        longest = max(longest, time.monotonic() - began)
        if "Invalid job id {" in printed(cell):
            raise LabError(f"no such variable: {cell.source}")
        if not is_waiting:
            return longest
        if "sbatch" in cell.source:
            raise LabError("this cell waits for a job that it submits itself, so a rerun would "
                           "submit it again; move jobs.wait() to a cell of its own: "
                           f"{cell.source}")
    raise LabError(f"the cell is still waiting for its job after {RUNS} runs: {cell.source}\n"
                   f"{printed(cell)}")


@contextlib.contextmanager
def temporary_workspace(lab: str, data: Path, notify: Notify) -> Iterator[Path]:
    """Make the workspace of a student who has done all earlier labs, with a new cluster; remove it
    in the end.

    Args:
        lab: the lab's name, such as "10_pipeline_1".
        data: the folder with the course's data, which is copied.
        notify: receives lines about the progress.
    """
    from slurmbox import control

    home = Path(tempfile.mkdtemp(prefix="lab-outputs-")).resolve()
    try:
        shipping.make_workspace(home, notify)
        shutil.copytree(data, home / "data", dirs_exist_ok=True)
        for piece in PIECES.values():
            worked = workspace.CHECKOUT / WORKED_FOLDER / f"{piece.name}.py"
            if piece.lab < f"lab {lab[:2]}" and worked.is_file():
                shutil.copy(worked, home / FOLDER)
        control.up(home, control.UpOptions(), notify=lambda line: None)
        yield home
    finally:
        control.down(home, notify=lambda line: None)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def as_from_a_terminal() -> Iterator[None]:
    """Hide the variables of a Slurm job and of a Jupyter server in which the command may run, and
    let SIGTERM end it as Ctrl-C does, so that no cluster stays."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ)
              if name.startswith("SLURM_") or name == "JPY_PARENT_PID"}
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        os.environ.update(hidden)
