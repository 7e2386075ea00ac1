"""`lab formgrader`: JupyterLab on the course folder, with nbgrader's formgrader."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from grader.commands import open_course
from grader.course import Course
from grader.gradebook.guard import protected
from grader.gradebook.records import gradebook_file
from grader.nbgrader_plugin.steps import ISOLATED_VARIABLE
from lab.hub import HubServer, address_from
from lab.jupyter import Jupyter
from lab.start import ignore_signals, notify, only_once
from labcore.errors import LabError


def serve(port: int | None, ip: str, hub: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C. Several instructors of a hub may do so at once, each in a container.

    Args:
        port: where JupyterLab listens; None for the first free port.
        ip: the address at which it can be reached.
        hub: the arguments that a JupyterHub gave; None without a hub.

    Raises LabError when it cannot start, or already runs.
    """
    course = open_course()
    (course.root / ".cluster").mkdir(exist_ok=True)  # where Jupyter keeps its log and settings
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with (only_once(course.root, shared=hub is not None), protected(gradebook_file(course)),
          contextlib.ExitStack() as started):
        notify("Starting JupyterLab with formgrader")
        try:
            jupyter = _jupyter(course, port, ip, hub)
            started.callback(jupyter.stop)
            started.callback(ignore_signals)
            jupyter.wait_until_ready()
            (course.root / ".cluster" / "start.lock").write_text(jupyter.address)
            notify("In JupyterLab: Nbgrader > Formgrader. Ctrl-C stops it.\n")
            print(f"    {jupyter.address}\n", flush=True)
            code = jupyter.process.wait()
        except KeyboardInterrupt:
            return 130
        if code:
            raise LabError(f"JupyterLab ended by itself (exit code {code}): see {jupyter.log}")
    return 0


def _jupyter(course: Course, port: int | None, ip: str, hub: Sequence[str] | None) -> Jupyter:
    # A kernel that starts beside a submitted notebook must not import the modules that lie there.
    variables = {"LAB_COURSE": str(course.root), ISOLATED_VARIABLE: "1", "PYTHONSAFEPATH": "1"}
    if hub is None:
        return Jupyter(course.root, variables, port, ip, instructor=True)
    return HubServer(course.root, variables, address_from(os.environ), hub, instructor=True,
                     own=Path.home())
