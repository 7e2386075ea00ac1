"""A back-end without any walls, for tests of what is on either side of them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from grader.sandbox.interface import Limits
from grader.sandbox.masks import SandboxMasks
from grader.sandbox.mounts import HOME
from grader.sandbox.mounts import environment as variables
from grader.sandbox.running import Running


class Plain:
    """Runs the command as a child, in a folder of its own below `folder`."""

    name = "plain"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Running] = []

    def start(self, command: Sequence[str], limits: Limits, *,
              files: Mapping[str, bytes] | None = None,
              environment: Mapping[str, str] | None = None,
              masks: SandboxMasks | None = None) -> Running:
        home = Path(tempfile.mkdtemp(dir=self.folder))
        for name, content in (files or {}).items():
            path = home / os.path.relpath(os.path.join(HOME, name), HOME)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        process = subprocess.Popen(
            list(command), cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
            env=variables({"HOME": str(home), "LAB_HOME": str(home / "workspace"),
                           **(environment or {})}))
        self.started.append(Running(process, None))
        return self.started[-1]

    def end(self) -> None:
        for running in self.started:
            running.kill()
