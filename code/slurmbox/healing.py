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


def ask(layout: Layout, *words: str, patience: float = NODES_PATIENCE) -> str:
    """Return what a Slurm command prints, and repeat the command until it succeeds.

    A controller that is busy or starting gives no answer, which is not the same as an empty one.

    Args:
        layout: the cluster's folders.
        words: the command; repeating it must do no harm.
        patience: seconds after which LabError is raised.
    """
    deadline = time.monotonic() + patience
    while (done := health.client(layout, *words)).returncode:
        if time.monotonic() > deadline:
            raise LabError(f"{' '.join(words)}: {done.stderr.strip()}")
        time.sleep(0.2)
    return done.stdout


def running_jobs(layout: Layout, *chosen: str, patience: float = NODES_PATIENCE) -> list[str]:
    """Return the jobs that Slurm believes to be running.

    Args:
        layout: the cluster's folders.
        chosen: further options of squeue.
        patience: seconds after which LabError is raised if Slurm gives no answer.
    """
    listed = ask(layout, "squeue", "-h", "-t", "R,S", "-o", "%A", *chosen, patience=patience)
    return list(dict.fromkeys(listed.split()))


def revive_ghosts(layout: Layout) -> None:
    """Jobs that a crash left "running" without processes: run them again, or cancel them."""
    again = []
    for job in running_jobs(layout):
        if health.client(layout, "scontrol", "requeue", job, patience=NODES_PATIENCE).returncode:
            health.client(layout, "scancel", job)
        else:
            again.append(job)
    start_requeued(layout, again)


def fail_node(layout: Layout, node: str, patience: float) -> list[str]:
    """Report to Slurm that everything on a node has died, and return the jobs that ran there.

    Slurm then ends these jobs with NODE_FAIL on all their nodes and requeues them, except those
    submitted with --no-requeue. It does not find out by itself: a slurmd that is back before
    SlurmdTimeout looks like one that was never gone. Call this before the node's slurmd starts:
    a node that registers returns to service (ReturnToService=2).

    Args:
        layout: the cluster's folders.
        node: the node's name.
        patience: seconds after which LabError is raised if Slurm gives no answer.
    """
    lost = running_jobs(layout, "-w", node, patience=patience)
    if lost:
        ask(layout, "scontrol", "update", f"nodename={node}", "state=down",
            "reason=its container was restarted", patience=patience)
    return lost


def start_requeued(layout: Layout, jobs: list[str]) -> None:
    """Start requeued jobs now; Slurm itself would hold them for two minutes."""
    waiting: list[str] = []
    ending, deadline = bool(jobs), time.monotonic() + NODES_PATIENCE
    while ending and time.monotonic() < deadline:
        listed = health.client(layout, "squeue", "-h", "-o", "%A %t")
        if not listed.returncode:
            states = dict(line.split() for line in listed.stdout.splitlines())
            waiting = [job for job in jobs if states.get(job) == "PD"]
            ending = any(states.get(job) == "CG" for job in jobs)
        time.sleep(0.05)
    if waiting:
        # A node refuses the job's new credential unless it is younger, in whole seconds, than the
        # end of the old one: the reason for Slurm's two minutes.
        time.sleep(1.1)
    for job in waiting:
        health.client(layout, "scontrol", "update", f"jobid={job}", "starttime=now",
                      patience=NODES_PATIENCE)
