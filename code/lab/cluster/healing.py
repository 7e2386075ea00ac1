"""Bring nodes and jobs back to what Slurm calls normal."""

from __future__ import annotations

import time

from lab.cluster import health
from lab.cluster.layout import Layout
from lab.cluster.profile import Profile
from lab.errors import LabError

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


def revive_ghosts(layout: Layout) -> None:
    """Jobs that a crash left "running" without processes: run them again, or cancel them."""
    listed = health.client(layout, "squeue", "-h", "-t", "R,S", "-o", "%A")
    again = set()
    for job in dict.fromkeys(listed.stdout.split()):
        if health.client(layout, "scontrol", "requeue", job).returncode:
            health.client(layout, "scancel", job)
        else:
            again.add(job)
    deadline = time.monotonic() + 5.0
    while again and time.monotonic() < deadline:
        listed = health.client(layout, "squeue", "-h", "-t", "PD", "-o", "%A")
        for job in again & set(listed.stdout.split()):  # Slurm would hold it for two minutes
            health.client(layout, "scontrol", "update", f"jobid={job}", "starttime=now")
            again.discard(job)
        time.sleep(0.05)
