"""End a cluster so that no process of it is left, whatever happened to it before."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from labcore.errors import LabError
from slurmbox import health, processes, requests
from slurmbox.config import RUN_VARIABLE, user_name
from slurmbox.layout import Layout


def cancel_jobs(layout: Layout, patience: float = 2.0) -> int:
    """Cancel all jobs, so that the next `up` starts with an empty queue."""
    jobs = set(health.client(layout, "squeue", "-h", "-o", "%A", patience=3.0).stdout.split())
    if jobs:
        health.client(layout, "scancel", f"--user={user_name()}", patience=3.0)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not health.client(layout, "squeue", "-h", "-o", "%A").stdout.split():
                break
            time.sleep(0.05)
    return len(jobs)


def end_supervisor(layout: Layout) -> None:
    """Ask, then kill. In namespaces the kernel ends everything inside with it."""
    found = health.supervisor(layout)
    if found:
        with contextlib.suppress(OSError, ValueError, LabError):
            requests.ask(layout.control_socket, do="end", patience=12.0)
        if not processes.wait_gone(*found, patience=1.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
            processes.wait_gone(*found, patience=5.0)
    for path in (layout.ready, layout.init_pid, layout.control_socket, layout.munge_socket):
        path.unlink(missing_ok=True)


def sweep(layout: Layout) -> int:
    """End what a crash left: clients inside our namespaces, daemons and jobs in loopback mode."""
    end_supervisor(layout)
    ended: set[int] = set()
    for _ in range(50):
        left = processes.in_root(layout.run.name) + processes.with_variable(
            f"{RUN_VARIABLE}={layout.run}")
        if not left:
            break
        processes.kill(left)
        ended.update(left)
        time.sleep(0.02)
    return len(ended)
