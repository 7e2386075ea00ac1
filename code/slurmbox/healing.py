"""Bring nodes and jobs back to a state that Slurm calls normal."""

from __future__ import annotations

import time

from labcore.errors import LabError
from slurmbox import health
from slurmbox.layout import Layout
from slurmbox.profile import ClusterProfile

NODES_TIMEOUT = 30.0  # seconds


def wait_for_nodes(layout: Layout, profile: ClusterProfile) -> None:
    """Wait until all nodes are up. Raises LabError that names those that are not."""
    deadline = time.monotonic() + NODES_TIMEOUT
    while True:
        states = health.node_states(layout) or {}
        bad = {name: states.get(name, "unknown") for name in profile.node_names
               if states.get(name) not in health.GOOD_STATES}
        if not bad:
            return
        if time.monotonic() > deadline or health.supervisor(layout) is None:
            listing = ", ".join(f"{name} is {state}" for name, state in bad.items())
            raise LabError(f"the cluster is damaged: {listing} (logs: {layout.state / 'log'}); "
                           "run lab cluster down, then lab cluster up")
        for name, state in bad.items():
            if state.startswith(("down", "drain", "drng", "fail")) and not state.endswith("*"):
                health.run_client(layout, "scontrol", "update", f"nodename={name}", "state=resume")
        time.sleep(0.02)


def finish_completing(layout: Layout) -> None:
    """Make Slurm ask again about jobs in state COMPLETING, whose slurmd may have been killed."""
    if health.run_client(layout, "squeue", "-h", "-t", "CG").stdout:
        health.run_client(layout, "scontrol", "reconfigure")


def run_until_success(layout: Layout, *words: str, timeout: float = NODES_TIMEOUT) -> str:
    """Return what a Slurm command prints, repeating the command until it succeeds.

    A controller that is busy or starting gives no answer, which differs from an empty one.

    Args:
        layout: the cluster's folders.
        words: the command; repeating it must do no harm.
        timeout: seconds after which LabError is raised.
    """
    deadline = time.monotonic() + timeout
    while (done := health.run_client(layout, *words)).returncode:
        if time.monotonic() > deadline:
            raise LabError(f"{' '.join(words)}: {done.stderr.strip()}")
        time.sleep(0.2)
    return done.stdout


def running_jobs(layout: Layout, *filters: str, timeout: float = NODES_TIMEOUT) -> list[str]:

    """Return the jobs that Slurm believes to be running.

    Args:
        layout: the cluster's folders.
        filters: further options of squeue.
        timeout: seconds after which LabError is raised if Slurm gives no answer.
    """
    listed = run_until_success(layout, "squeue", "-h", "-t", "R,S", "-o", "%A", *filters,
                               timeout=timeout)
    return list(dict.fromkeys(listed.split()))


def requeue_orphaned_jobs(layout: Layout) -> None:
    """Requeue or cancel jobs that Slurm calls running, but whose processes a crash killed."""
    requeued = []
    for job in running_jobs(layout):
        if health.run_client(layout, "scontrol", "requeue", job, timeout=NODES_TIMEOUT).returncode:
            health.run_client(layout, "scancel", job)
        else:
            requeued.append(job)
    start_requeued(layout, requeued)


def fail_node(layout: Layout, node: str, timeout: float) -> list[str]:
    """Report to Slurm that everything on a node has died, and return the jobs that ran there.

    Slurm then ends these jobs with NODE_FAIL on all their nodes and requeues them, except those
    submitted with --no-requeue. It would not notice by itself: a slurmd that is back before
    SlurmdTimeout looks as if it had never been gone. Call this before the node's slurmd starts,
    because a node that registers returns to service (ReturnToService=2).

    Args:
        layout: the cluster's folders.
        node: the node's name.
        timeout: seconds after which LabError is raised if Slurm gives no answer.
    """
    lost = running_jobs(layout, "-w", node, timeout=timeout)
    if lost:
        run_until_success(layout, "scontrol", "update", f"nodename={node}", "state=down",
                          "reason=its container was restarted", timeout=timeout)
    return lost


def start_requeued(layout: Layout, jobs: list[str]) -> None:
    """Start requeued jobs now; Slurm itself would hold them for two minutes."""
    waiting: list[str] = []
    ending, deadline = bool(jobs), time.monotonic() + NODES_TIMEOUT
    while ending and time.monotonic() < deadline:
        listed = health.run_client(layout, "squeue", "-h", "-o", "%A %t")
        if not listed.returncode:
            states = dict(line.split() for line in listed.stdout.splitlines())
            waiting = [job for job in jobs if states.get(job) == "PD"]
            ending = any(states.get(job) == "CG" for job in jobs)
        time.sleep(0.05)
    if waiting:
        # A node refuses the job's new credential unless it is younger, in whole seconds, than the
        # end of the old one. That is why Slurm waits two minutes.
        time.sleep(1.1)
    for job in waiting:
        health.run_client(layout, "scontrol", "update", f"jobid={job}", "starttime=now",
                          timeout=NODES_TIMEOUT)
