"""srun and scontrol among the stand-ins: the steps of a job, and the names of its nodes.

stand_in.py has put this folder on sys.path.
"""

from __future__ import annotations

import os
import subprocess
import sys

import binding
from noting import STEP, linger, write_down

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
    allocated = options.count(env.get("SLURM_NNODES"), 1)
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
        arguments: srun's arguments.
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
    _require_cpus(asked, max(tasks))
    folder = asked.get("chdir")
    if folder is not None and not options.can_enter(folder):
        raise options.BadOption(f"--chdir={folder}: there is no such folder that the tasks can "
                                "enter, so Slurm runs them in /tmp: give an absolute path")
    linger(record)
    step = next_step(record)
    write_down(record, "srun", [f"--{name}={value}" for name, value in asked.items()], step)
    task = status = 0
    whole = options.exported(asked.get("export") or os.environ.get("SLURM_EXPORT_ENV"),
                             dict(os.environ))
    whole.pop(binding.MASK, None)  # slurmd starts the tasks, so they do not inherit srun's CPUs
    for node, here in enumerate(tasks):
        for local in range(here):
            env = {**whole, "SLURM_STEP_ID": str(step), STEP: f"{step}/{os.getpid()}",
                   "SLURM_NNODES": str(len(tasks)), "SLURM_STEP_NUM_NODES": str(len(tasks)),
                   "SLURM_PROCID": str(task), "SLURM_NODEID": str(node),
                   "SLURM_LOCALID": str(local), "SLURM_NTASKS": str(sum(tasks)),
                   "SLURMD_NODENAME": names[node], **_bound(asked, local)}
            status = subprocess.run(command, env=env, cwd=folder,
                                    stdin=subprocess.DEVNULL).returncode or status
            task += 1
    return status


def _require_cpus(asked: dict[str, str], tasks: int) -> None:
    """Raise BadOption if a step requests more CPUs than the job has.

    Args:
        asked: srun's options.
        tasks: the number of tasks on the step's fullest node.
    """
    given = asked.get("cpus-per-task", os.environ.get("SRUN_CPUS_PER_TASK"))
    if given is None:
        return
    each = options.cpus(given)
    have = options.count(os.environ.get("SLURM_CPUS_ON_NODE"), 1)
    if tasks * each > have and "overcommit" not in asked:
        raise options.BadOption(f"--cpus-per-task={each}: {tasks} task(s) on a node need "
                                f"{tasks * each} CPUs, and the job has {have} there; "
                                "#SBATCH --cpus-per-task requests them")


def _bound(asked: dict[str, str], task: int) -> dict[str, str]:
    """Return the variable with the CPUs that a task is bound to, if it is. Raises BadOption.

    Args:
        asked: srun's options.
        task: the task's number on its node.
    """
    named = asked.get("cpu-bind", os.environ.get("SLURM_CPU_BIND", ""))
    try:
        return binding.of_srun(named, task)
    except ValueError as error:
        raise options.BadOption(f"--cpu-bind={named}: {error}") from error


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
        arguments: scontrol's arguments.
    """
    if arguments[:2] in (["show", "hostnames"], ["show", "hostname"]):
        hosts = arguments[2] if len(arguments) > 2 else os.environ["SLURM_JOB_NODELIST"]
        print("\n".join(options.expand(hosts)))
    elif arguments[:2] == ["show", "hostlist"] and len(arguments) > 2:
        print(arguments[2])
    elif arguments[:1] == ["requeue"]:
        write_down(record, "scontrol", arguments)
    return 0
