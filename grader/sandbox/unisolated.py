"""Run a program in a folder and an environment of its own, without isolating it.

This is for students who validate their own code on a machine without a sandbox. Grading never uses
it: grader.sandbox.choice does not have it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from grader.sandbox.interface import Limits
from grader.sandbox.masks import SandboxMasks
from grader.sandbox.mounts import HOME, environment
from grader.sandbox.running import Running

# Python imports it at its start. A sandbox mounts the masks over the originals; here, imports are
# redirected.
REDIRECTS = """import importlib.machinery, importlib.util, os, sys
SHOWN = {shown!r}
class Masks(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        origin = spec.origin if spec else None
        if not isinstance(origin, str):
            return spec
        folder, file = os.path.split(os.path.realpath(origin))
        if file == "__init__.py" and folder in SHOWN:
            shown = os.path.join(SHOWN[folder], file)
        else:
            shown = SHOWN.get(os.path.realpath(origin))
        if shown is None:
            return spec
        searched = spec.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, shown, submodule_search_locations=None if searched is None else list(searched))
sys.meta_path.insert(0, Masks)
"""


class Unisolated:
    """Starts programs as children, each with a home folder of its own below `folder`."""

    name = "none"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Running] = []

    def start(self, command: Sequence[str], limits: Limits, *,
              files: Mapping[str, bytes] | None = None,
              environment: Mapping[str, str] | None = None,
              masks: SandboxMasks | None = None) -> Running:
        """Start a program as grader.sandbox.interface.Backend describes it, without its limits."""
        home = Path(tempfile.mkdtemp(dir=self.folder))
        for name, content in (files or {}).items():
            path = home / os.path.relpath(os.path.join(HOME, name), HOME)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        process = subprocess.Popen(
            list(command), cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
            env=_variables(home, masks) | dict(environment or {}))
        running = Running(process, None)
        running.at_end(lambda: _kill_group(process.pid))
        self.started.append(running)
        return running

    def end(self) -> None:
        """End every program that was started."""
        for running in self.started:
            running.kill()


def _variables(home: Path, masks: SandboxMasks | None) -> dict[str, str]:
    variables = environment({"HOME": str(home), "LAB_HOME": str(home / "workspace")})
    if masks is not None and masks.shown:
        folder = home / ".masks"
        folder.mkdir()
        shown = {os.path.realpath(path): masked for path, masked in masks.shown.items()}
        (folder / "sitecustomize.py").write_text(REDIRECTS.format(shown=shown))
        variables["PYTHONPATH"] = f"{folder}{os.pathsep}{variables['PYTHONPATH']}"
    return variables


def _kill_group(leader: int) -> None:
    """End what a program started in its own session and left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
