"""Run commands in forks of a process that has imported the grader, 1.2 s of CPU time."""

from __future__ import annotations

import atexit
import functools
import importlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from warmranks import ForkServer

MAINS = {"lab": "lab.cli", "nbgrader": "nbgrader.apps.nbgraderapp",  # as in the entry points
         "button": "tests.grader.programs.button", "leak": "tests.grader.programs.leak",
         "interrupted": "tests.grader.programs.interrupted",
         "no-room": "tests.grader.programs.no_room"}


@functools.cache
def server() -> ForkServer:
    """One for all tests of this process, until its end."""
    made = ForkServer([
        "tests.grader.programs.commands", "grader.batch.grading", "grader.feedback.pages",
        "grader.run.attempt", "grader.report.show", "grader.sandbox.selftest",
        "grader.contest.grading", "nbgrader.apps.nbgraderapp", "rich.progress"])
    atexit.register(made.close)
    return made


def command(program: str) -> int | None:
    """Be an entry point: run its main function."""
    return importlib.import_module(MAINS[program]).main()


def warm(program: str, *words: str, env: Mapping[str, str], cwd: Path, seconds: float
         ) -> subprocess.CompletedProcess[str]:
    """Run a command as `subprocess.run` with captured output does.

    Args:
        program: one of MAINS.
        *words: its arguments.
        env: the whole environment.
        cwd: the working directory.
        seconds: the timeout.
    """
    path = str(Path(sys.executable).with_name(program))
    return server().run_program(command, [path, *words], program, env=env, cwd=cwd,
                                timeout=seconds)
