"""Bring nodes and jobs back to what Slurm calls normal."""

from __future__ import annotations

import time

from labcore.errors import LabError
from slurmbox import health
from slurmbox.layout import Layout
from slurmbox.profile import Profile

NODES_PATIENCE = 30.0


def wait_for_nodes(layout: Layout, profile: Profile) -> None:
    deadline = time.monotonic() + NODES_PATIENCE
    while True:
        states = health.node_states(layout) or {}
        bad = {name: states.get(name, "unknown") for name in profile.node_names
               if states.get(name) not in health.GOOD_STATES}
        if not bad:
            return
        if time.monotonic() > deadline or health.supervisor(layout) is None:
            listing = ", ".join(f"{name} is {state}" for name, state in bad.items())
            raise LabError(f"the cluster is damaged: {listing} (logs: {layout.state / 'log'}); "
                           "start afresh: lab cluster down, then lab cluster up")
        for name, state in bad.items():
            if state.startswith(("down", "drain", "drng", "fail")) and not state.endswith("*"):
                health.client(layout, "scontrol", "update", f"nodename={name}", "state=resume")
        time.sleep(0.02)


def finish_completing(layout: Layout) -> None:
    """A slurmd killed at a job's end never said so: reconfiguring makes Slurm ask again."""
    if health.client(layout, "squeue", "-h", "-t", "CG").stdout:
        health.client(layout, "scontrol", "reconfigure")


def running_jobs(layout: Layout, *chosen: str) -> list[str]:
    """What Slurm takes for running; chosen: further options of squeue."""
    listed = health.client(layout, "squeue", "-h", "-t", "R,S", "-o", "%A", *chosen)
    return list(dict.fromkeys(listed.stdout.split()))


def revive_ghosts(layout: Layout, ghosts: list[str] | None = None) -> None:
    """Jobs that a crash left "running" without processes: run them again, or cancel them."""
    again = set()
    for job in running_jobs(layout) if ghosts is None else ghosts:
        if health.client(layout, "scontrol", "requeue", job).returncode:
            health.client(layout, "scancel", job)
        else:
            again.add(job)
    pending: set[str] = set()
    deadline = time.monotonic() + 5.0
    while pending != again and time.monotonic() < deadline:
        listed = health.client(layout, "squeue", "-h", "-t", "PD", "-o", "%A")
        pending = again & set(listed.stdout.split())
        time.sleep(0.05)
    if pending:
        # A node refuses the job's new credential unless it is younger, in whole seconds, than the
        # end of the old one. Slurm itself would hold the job for two minutes to be safe.
        time.sleep(1.1)
    for job in pending:
        health.client(layout, "scontrol", "update", f"jobid={job}", "starttime=now")
