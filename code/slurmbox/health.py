"""Report the state of the cluster and its problems."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field

from labcore.errors import LabError
from slurmbox import clients, requests
from slurmbox.config import put
from slurmbox.layout import Layout
from slurmbox.processes import start_time

GOOD_STATES = ("idle", "mix", "alloc", "comp", "resv")


@dataclass
class Health:
    """The state of the cluster.

    Attributes:
        alive: whether the supervisor runs.
        report: the supervisor's answer to a report request.
        states: the state of each node, as sinfo prints it.
        problems: what is wrong, in words.
    """

    alive: bool
    report: dict = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def supervisor(layout: Layout) -> tuple[int, int] | None:
    """Return the PID and the start time of the running supervisor, or None."""
    try:
        pid, started = map(int, layout.init_pid.read_text().split())
    except (OSError, ValueError):
        return None
    return (pid, started) if start_time(pid) == started else None


def read_record(layout: Layout) -> dict | None:
    try:
        return json.loads(layout.record.read_text())
    except (OSError, ValueError):
        return None


def write_record(layout: Layout, record: dict) -> None:
    put(layout.record, json.dumps(record))


def run_client(layout: Layout, *words: str, timeout: float = 5.0) -> subprocess.CompletedProcess:
    """Run a Slurm command through its wrapper, for at most `timeout` seconds."""
    command = [str(layout.bin / words[0]), *words[1:]]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL, cwd="/",
                              env=clients.full_environment(layout.home))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "no answer")


def node_states(layout: Layout) -> dict[str, str] | None:
    """Return sinfo's state of each node, or None if the controller does not respond.

    A node that backfill plans to use ("plnd") counts as idle. Slurm may keep this state for a while
    after the planned job has ended.
    """
    done = run_client(layout, "sinfo", "-h", "-N", "-o", "%N %t")
    if done.returncode:
        return None
    states = dict(line.split() for line in done.stdout.splitlines())
    return {node: "idle" if state == "plnd" else state for node, state in states.items()}


def examine(layout: Layout) -> Health:
    if supervisor(layout) is None:
        return Health(alive=False, problems=["the supervisor is not running"])
    try:
        report = requests.send(layout.control_socket, do="report")
    except (OSError, ValueError, LabError) as error:
        return Health(alive=True, problems=[f"the supervisor does not respond ({error})"])
    health = Health(alive=True, report=report)
    for name, daemon in report["daemons"].items():
        if not daemon["running"]:
            health.problems.append(_daemon_problem(name, daemon["stopped"]))
    health.problems += [f"{name} has no network (lab cluster node {name} heal)"
                        for name in report["cut"]]
    states = node_states(layout)
    if states is None:
        health.problems.append(f"slurmctld does not respond (see {layout.log('slurmctld')})")
    else:
        health.states = states
        health.problems += [f"{name} is {state}" for name, state in states.items()
                            if state.rstrip("~#") not in GOOD_STATES]
    return health


def _daemon_problem(daemon: str, stopped: bool) -> str:
    name, _, node = daemon.partition(".")
    if stopped:
        return f"{name} on {node} was killed (lab cluster node {node} start)"
    return f"{name}{' on ' + node if node else ''} is not running"
