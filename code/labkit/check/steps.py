"""srun and scontrol among the stand-ins: the steps of a job, and the names of its nodes.

stand_in.py has put this folder on sys.path.
"""

from __future__ import annotations

import os
import subprocess
import sys

import binding
from noting import linger, write_down

import options

MOST_TASKS = 256


def hosts_of(asked: dict[str, str]) -> list[str]:
    """The nodes of the job that a step may use, in their order. Raises BadOption."""
    there = options.expand(os.environ["SLURM_JOB_NODELIST"])
    named = options.expand(asked.get("nodelist", ""))
    if unknown := [name for name in named if name not in there]:
        raise options.BadOption(f"--nodelist {unknown[0]} is no node of this job; "
                                f"nearest: {there[0]}")
    first = options.count(asked["relative"], 1) if asked.get("relative", "0") != "0" else 0
    return sorted(there[first:], key=lambda name: name not in named)


def layout(asked: dict[str, str]) -> list[int]:
    """The number of tasks on each node of a step, as srun's defaults have it. Where the job has a
    number of tasks (SLURM_NTASKS), srun ignores an --ntasks-per-node that does not fit it."""
    env = os.environ
    allocated = int(env["SLURM_NNODES"])
    nodes = options.count(asked.get("nodes"), allocated)
    if nodes > allocated:
        raise options.BadOption(f"only {allocated} node(s) are allocated, {nodes} are asked for")
    given = asked.get("ntasks") or env.get("SLURM_NTASKS")
    if given is None:
        return [options.count(asked.get("ntasks-per-node"), 1)] * nodes
    tasks = options.count(given, nodes)
    nodes = min(nodes, tasks)
    share, rest = divmod(tasks, nodes)
    return [share + (node < rest) for node in range(nodes)]


def srun(record: str, arguments: list[str]) -> int:
    """Run the command once per task. Return srun's exit code.

    Args:
        record: the path of the record.
        arguments: of srun.
    """
    try:
        return _srun(record, arguments)
    except options.BadOption as error:
        write_down(record, "srun-refused", [str(error)])
        print(f"srun: error: {error}", file=sys.stderr)
        return 1


def _srun(record: str, arguments: list[str]) -> int:
    if "SLURM_JOB_NODELIST" not in os.environ:
        raise options.BadOption("it does not know its job: the SLURM_ variables are gone (env -i?)")
    asked, command = options.parse(arguments, "srun")
    tasks, names = layout(asked), hosts_of(asked)
    if not command or sum(tasks) > MOST_TASKS:
        write_down(record, "srun-refused", [f"{sum(tasks)} tasks of {command[:1]}"])
        return 1
    if len(names) < len(tasks):
        raise options.BadOption(f"{len(tasks)} node(s) are asked for, {len(names)} are left")
    linger(record)
    step = next_step(record)
    write_down(record, "srun", [f"--{name}={value}" for name, value in asked.items()], step)
    chdir = asked.get("chdir", "")
    folder = chdir if os.path.isdir(chdir) else None
    task = status = 0
    whole = options.exported(asked.get("export") or os.environ.get("SLURM_EXPORT_ENV"),
                             dict(os.environ))
    for node, here in enumerate(tasks):
        for local in range(here):
            env = {**whole, "SLURM_STEP_ID": str(step),
                   "SLURM_NNODES": str(len(tasks)), "SLURM_STEP_NUM_NODES": str(len(tasks)),
                   "SLURM_PROCID": str(task), "SLURM_NODEID": str(node),
                   "SLURM_LOCALID": str(local), "SLURM_NTASKS": str(sum(tasks)),
                   "SLURMD_NODENAME": names[node], **_bound(asked, local)}
            status = subprocess.run(command, env=env, cwd=folder,
                                    stdin=subprocess.DEVNULL).returncode or status
            task += 1
    return status


def _bound(asked: dict[str, str], task: int) -> dict[str, str]:
    """Return what --cpu-bind sets for a task of a node. Raises BadOption."""
    try:
        return binding.of_srun(asked.get("cpu-bind", ""), task)
    except ValueError as error:
        raise options.BadOption(f"--cpu-bind={asked['cpu-bind']}: {error}") from error


def next_step(record: str) -> int:
    """Steps that run side by side (srun ... &) must not get one number."""
    number = 0
    while True:
        try:
            os.mkdir(f"{record}.step{number}")
            return number
        except FileExistsError:
            number += 1


def scontrol(record: str, arguments: list[str]) -> int:
    """Print the names of nodes, and note a requeue. Return scontrol's exit code.

    Args:
        record: the path of the record.
        arguments: of scontrol.
    """
    if arguments[:2] in (["show", "hostnames"], ["show", "hostname"]):
        hosts = arguments[2] if len(arguments) > 2 else os.environ["SLURM_JOB_NODELIST"]
        print("\n".join(options.expand(hosts)))
    elif arguments[:2] == ["show", "hostlist"] and len(arguments) > 2:
        print(arguments[2])
    elif arguments[:1] == ["requeue"]:
        write_down(record, "scontrol", arguments)
    return 0
