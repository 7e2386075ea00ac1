"""`lab formgrader`: JupyterLab over the course folder, with nbgrader's formgrader in it."""

from __future__ import annotations

import contextlib
import signal

from grader.course import Course, default_root
from grader.steps import ISOLATED_VARIABLE
from lab.errors import LabError
from lab.jupyter import Jupyter
from lab.start import only_once, say, undisturbed


def serve(port: int | None, ip: str) -> int:
    """Until Ctrl-C. Raises LabError when it cannot start, or already runs."""
    course = Course(default_root())
    course.make()
    course.settings()
    (course.root / ".cluster").mkdir(exist_ok=True)  # where Jupyter keeps its log and settings
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with only_once(course.root), contextlib.ExitStack() as started:
        say("Starting JupyterLab with formgrader")
        try:
            jupyter = Jupyter(course.root, {"LAB_COURSE": str(course.root), ISOLATED_VARIABLE: "1"},
                              port, ip, instructor=True)
            started.callback(jupyter.stop)
            started.callback(undisturbed)
            jupyter.wait_until_ready()
            (course.root / ".cluster" / "start.lock").write_text(jupyter.address)
            say("In JupyterLab: Nbgrader > Formgrader. Ctrl-C stops it.\n")
            print(f"    {jupyter.address}\n", flush=True)
            code = jupyter.process.wait()
        except KeyboardInterrupt:
            return 130
        if code:
            raise LabError(f"JupyterLab ended by itself (exit code {code}): see {jupyter.log}")
    return 0
