"""Run the rebuilt notebook for `nbgrader autograde` on the command line: in a plain kernel, WITHOUT
ISOLATION. `lab grade`, and formgrader under `lab formgrader`, run it in a sandbox."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbgrader.preprocessors import Execute

from grader.course import Submission
from grader.course.reasons import Unusable
from grader.gradebook.records import submission_of
from grader.gradebook.ungraded import ungraded_on_error
from grader.run.lab_plan import title
from labcore import shipping
from labcore.terminal import visible
from labkit.check.sides import SEED_VARIABLE

WARNING = ("students' code runs as %s, without isolation: it can read and change whatever you can. "
           "`lab grade` runs it in a sandbox.")
# Cells of the course: when one fails, the checks after it say nothing about the student.
COURSE_CELLS = {"setup", "check-setup"}
_warned = False


class RunSubmission(Execute):
    """Runs every cell except those for exploring, in a workspace made for this grading."""

    def preprocess(self, nb: NotebookNode, resources: Any = None, km: Any = None
                   ) -> tuple[NotebookNode, Any]:
        global _warned
        if not _warned:
            _warned = True
            self.log.warning(WARNING, os.environ.get("USER") or f"user {os.geteuid()}")
        submission = submission_of(self, resources)
        with ungraded_on_error(submission):
            return self._run(nb, resources, km, submission)

    def _run(self, nb: NotebookNode, resources: Any, km: Any, submission: Submission
             ) -> tuple[NotebookNode, Any]:
        with tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True) as folder:
            home = Path(folder) / "workspace"
            shipping.make_workspace(home, self.log.info)
            seed = submission.course.seed(*submission.key, submission.digest)
            noise = Path(folder) / "stderr"  # of the kernel's process, not of its cells
            try:
                with noise.open("wb") as stderr:
                    self._start = {"cwd": str(home), "stderr": stderr,
                                   "env": environment(home, seed)}
                    nb, resources = super().preprocess(nb, resources, km)
            except DeadKernelError as error:
                raise Unusable(f"its code ended the kernel, in the cell {title(self._cell)}"
                               ) from error
            finally:
                output = noise.read_text(errors="replace")[-2000:]
                self.log.info("standard error of the kernel: %s", visible(output, keep="\n"))
        require_course_cells(nb)
        return nb, resources

    def preprocess_cell(self, cell: NotebookNode, resources: Any, index: int
                        ) -> tuple[NotebookNode, Any]:
        self._cell = cell
        return super().preprocess_cell(cell, resources, index)

    @contextlib.contextmanager
    def setup_kernel(self, **keywords: Any) -> Iterator[None]:
        with super().setup_kernel(**keywords, **self._start):
            yield


def environment(home: Path, seed: str) -> dict[str, str]:
    """Return this process's variables without the cluster's, plus the workspace and the seed.

    Args:
        home: the workspace.
        seed: the seed of the hidden cases.
    """
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "SBATCH_", "LAB_", "JUPYTER_", "JPY_"))}
    system = {"/usr/local/bin", "/usr/bin", "/bin"}
    path = [folder for folder in os.environ.get("PATH", os.defpath).split(":")
            if folder in system or not (Path(folder) / "sbatch").exists()]
    return kept | {
        "PATH": ":".join([str(Path(sys.executable).parent), *path]),
        "SLURM_CONF": str(home / "there-is-no-cluster-while-grading"),
        "IPYTHONDIR": str(home / ".ipython"),  # not the instructor's start-up files
        "LAB_HOME": str(home), SEED_VARIABLE: seed}


def require_course_cells(nb: NotebookNode) -> None:
    """Raise Unusable when one of the course's own cells failed."""
    for cell in nb.cells:
        if not COURSE_CELLS & set(cell.metadata.get("tags", [])):
            continue
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                raise Unusable(f"the course's own cell {title(cell)} failed: {output.ename}: "
                               f"{output.evalue[:200]}")
