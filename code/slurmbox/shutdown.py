"""Stop a cluster so that none of its processes is left, whatever state it was in."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from labcore.errors import LabError
from slurmbox import health, processes, requests
from slurmbox.config import RUN_VARIABLE, user_name
from slurmbox.layout import Layout


def cancel_jobs(layout: Layout, timeout: float = 2.0) -> int:
    """Cancel all jobs, so that the next `up` starts with an empty queue, and return their number.

    Args:
        layout: the cluster's folders.
        timeout: seconds to wait until they are gone.
    """
    jobs = set(health.run_client(layout, "squeue", "-h", "-o", "%A", timeout=3.0).stdout.split())
    if jobs:
        health.run_client(layout, "scancel", f"--user={user_name()}", timeout=3.0)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not health.run_client(layout, "squeue", "-h", "-o", "%A").stdout.split():
                break
            time.sleep(0.05)
    return len(jobs)


def end_supervisor(layout: Layout) -> None:
    """Ask the supervisor to end, then kill it. In namespaces, this kills all of the cluster."""
    supervisor = health.supervisor(layout)
    if supervisor:
        with contextlib.suppress(OSError, ValueError, LabError):
            requests.send(layout.control_socket, do="end", timeout=12.0)
        if not processes.wait_gone(*supervisor, timeout=1.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor[0], signal.SIGKILL)
            processes.wait_gone(*supervisor, timeout=5.0)
    for path in (layout.ready, layout.init_pid, layout.control_socket, layout.munge_socket):
        path.unlink(missing_ok=True)


def kill_leftovers(layout: Layout) -> int:
    """Kill what a crash left behind, and return the number of processes.

    These are clients inside the namespaces, and daemons and jobs in loopback mode.
    """
    end_supervisor(layout)
    killed: set[int] = set()
    for _ in range(50):
        left = processes.pids_in_cluster(layout.run.name) + processes.pids_with_variable(
            f"{RUN_VARIABLE}={layout.run}")
        if not left:
            break
        processes.kill(left)
        killed.update(left)
        time.sleep(0.02)
    return len(killed)
