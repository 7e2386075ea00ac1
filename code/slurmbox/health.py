"""Report the state of the cluster and what is wrong with it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field

from labcore.errors import LabError
from slurmbox import clients, requests
from slurmbox.layout import Layout
from slurmbox.processes import start_time

GOOD_STATES = ("idle", "mix", "alloc", "comp", "resv")


@dataclass
class Health:
    alive: bool  # the supervisor
    report: dict = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)  # sinfo's word for each node
    problems: list[str] = field(default_factory=list)


def supervisor(layout: Layout) -> tuple[int, int] | None:
    """PID and start time of the one that runs."""
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


def client(layout: Layout, *words: str, patience: float = 5.0) -> subprocess.CompletedProcess:
    """A Slurm command through its wrapper; never for ever."""
    command = [str(layout.bin / words[0]), *words[1:]]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=patience,
                              stdin=subprocess.DEVNULL, cwd="/",
                              env=clients.full_environment(layout.home))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "no answer")


def node_states(layout: Layout) -> dict[str, str] | None:
    """Return sinfo's word for each node, or None if the controller does not answer.

    A node that backfill plans to use ("plnd") is idle, and Slurm may keep that word for a while
    after the job it was planned for has ended.
    """
    done = client(layout, "sinfo", "-h", "-N", "-o", "%N %t")
    if done.returncode:
        return None
    states = dict(line.split() for line in done.stdout.splitlines())
    return {node: "idle" if state == "plnd" else state for node, state in states.items()}


def examine(layout: Layout) -> Health:
    if supervisor(layout) is None:
        return Health(alive=False, problems=["the supervisor does not run"])
    try:
        report = requests.ask(layout.control_socket, do="report")
    except (OSError, ValueError, LabError) as error:
        return Health(alive=True, problems=[f"the supervisor does not answer ({error})"])
    health = Health(alive=True, report=report)
    for name, about in report["daemons"].items():
        if not about["running"]:
            health.problems.append(_missing(name, about["stopped"]))
    health.problems += [f"{name} is cut off (lab cluster node {name} heal)"
                        for name in report["cut"]]
    states = node_states(layout)
    if states is None:
        health.problems.append(f"slurmctld does not answer (see {layout.log('slurmctld')})")
    else:
        health.states = states
        health.problems += [f"{name} is {state}" for name, state in states.items()
                            if state.rstrip("~#") not in GOOD_STATES]
    return health


def _missing(daemon: str, stopped: bool) -> str:
    name, _, node = daemon.partition(".")
    if stopped:
        return f"{name} of {node} was killed (lab cluster node {node} start)"
    return f"{name}{' of ' + node if node else ''} does not run"
