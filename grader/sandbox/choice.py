"""Choose the back end: the first one that is safe on this machine, or none at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable

from grader.course import require_known
from grader.sandbox import advice
from grader.sandbox.bubblewrap import Bubblewrap
from grader.sandbox.interface import MB, Backend, Limits, Unavailable
from grader.sandbox.podman import Podman

BACKENDS: dict[str, Callable[[], Backend]] = {"bubblewrap": Bubblewrap, "podman": Podman}
SMALL = Limits(memory=256 * MB, processes=16, disk=1 * MB)


def choose(name: str | None = None) -> Backend:
    """Return the first back end that starts and isolates.

    With `name`, or else $LAB_SANDBOX, only that one is tried. Raises Unavailable with the reasons
    why none is available, and LabError for an unknown name.
    """
    name = name or os.environ.get("LAB_SANDBOX") or None
    if name:
        require_known("sandbox", name, BACKENDS, "c.Grading.sandbox and LAB_SANDBOX")
    reasons = []
    for one in [name] if name else BACKENDS:
        backend = BACKENDS[one]()
        try:
            try_out(backend)
            return backend
        except Unavailable as error:
            reasons.append(f"{one}: {error}")
    raise Unavailable("no sandbox is safe on this machine, and nothing is graded without one.\n"
                      + "\n".join(reasons))


def try_out(backend: Backend) -> None:
    """Raise Unavailable unless the back end starts."""
    with backend.start(["/bin/sh", "-c", "echo ready"], SMALL) as running:
        with open(running.stdout, "rb", closefd=False) as file:
            output = file.read()
        if output != b"ready\n":
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(5)
            # in this order: why waits for all
            why, noise = running.end_reason(), running.error_output().strip()
            raise Unavailable(f"does not start ({why}): {noise}\n"
                              + advice.for_start(backend.name, noise))
