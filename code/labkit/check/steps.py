"""srun and scontrol among the stand-ins: the steps of a job, and the names of its nodes.

stand_in.py has put this folder on sys.path.
"""

from __future__ import annotations

import os
import subprocess
import sys

import binding
from noting import STEP, append_launch, linger

import options

MOST_TASKS = 256


def hosts_of(requested: dict[str, str]) -> list[str]:
    """Return the nodes of the job that a step may use, in order. Raises BadOption."""
    nodes = options.expand(os.environ["SLURM_JOB_NODELIST"])
    named = options.expand(requested.get("nodelist", ""))
    if unknown := [name for name in named if name not in nodes]:
        raise options.BadOption(f"--nodelist {unknown[0]} is not a node of this job; "
                                f"nearest: {nodes[0]}")
    first = options.count(requested["relative"], 1) if requested.get("relative", "0") != "0" else 0
    return sorted(nodes[first:], key=lambda name: name not in named)


def layout(requested: dict[str, str]) -> list[int]:
    """Return the number of tasks on each node of a step, with srun's defaults.

    If the job has a number of tasks (SLURM_NTASKS), srun ignores an --ntasks-per-node that
    contradicts it.
    """
    env = os.environ
    allocated = options.count(env.get("SLURM_NNODES"), 1)
    nodes = options.count(requested.get("nodes"), allocated)
    if nodes > allocated:
        raise options.BadOption(f"{nodes} nodes requested, but only {allocated} allocated")
    given = requested.get("ntasks") or env.get("SLURM_NTASKS")
    if given is None:
        return [options.count(requested.get("ntasks-per-node"), 1)] * nodes
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
        append_launch(record, "srun-refused", [str(error)])
        print(f"srun: error: {error}", file=sys.stderr)
        return 1


def _srun(record: str, arguments: list[str]) -> int:
    if "SLURM_JOB_NODELIST" not in os.environ:
        raise options.BadOption("it cannot find its job: the SLURM_ variables are missing (env "
                                "-i?)")
    requested, command = options.parse(arguments, "srun")
    tasks, names = layout(requested), hosts_of(requested)
    if not command or sum(tasks) > MOST_TASKS:
        append_launch(record, "srun-refused", [f"{sum(tasks)} tasks of {command[:1]}"])
        return 1
    if len(names) < len(tasks):
        raise options.BadOption(f"{len(tasks)} node(s) requested, but only {len(names)} remain")
    _require_cpus(requested, max(tasks))
    folder = requested.get("chdir")
    if folder is not None and not options.can_enter(folder):
        raise options.BadOption(f"--chdir={folder}: there is no such folder that the tasks can "
                                "enter, so Slurm runs them in /tmp: give an absolute path")
    linger(record)
    step = next_step(record)
    append_launch(record, "srun", [f"--{name}={value}" for name, value in requested.items()], step)
    task = status = 0
    base_env = options.exported(requested.get("export") or os.environ.get("SLURM_EXPORT_ENV"),
                                dict(os.environ))
    base_env.pop(binding.MASK, None)  # slurmd starts the tasks, so they do not inherit srun's CPUs
    for node, here in enumerate(tasks):
        for local in range(here):
            env = {**base_env, "SLURM_STEP_ID": str(step), STEP: f"{step}/{os.getpid()}",
                   "SLURM_NNODES": str(len(tasks)), "SLURM_STEP_NUM_NODES": str(len(tasks)),
                   "SLURM_PROCID": str(task), "SLURM_NODEID": str(node),
                   "SLURM_LOCALID": str(local), "SLURM_NTASKS": str(sum(tasks)),
                   "SLURMD_NODENAME": names[node], **_bound(requested, local)}
            status = subprocess.run(command, env=env, cwd=folder,
                                    stdin=subprocess.DEVNULL).returncode or status
            task += 1
    return status


def _require_cpus(requested: dict[str, str], tasks: int) -> None:
    """Raise BadOption if a step requests more CPUs than the job has.

    Args:
        requested: srun's options.
        tasks: the number of tasks on the step's fullest node.
    """
    given = requested.get("cpus-per-task", os.environ.get("SRUN_CPUS_PER_TASK"))
    if given is None:
        return
    each = options.cpus(given)
    have = options.count(os.environ.get("SLURM_CPUS_ON_NODE"), 1)
    if tasks * each > have and "overcommit" not in requested:
        raise options.BadOption(f"--cpus-per-task={each}: {tasks} task(s) on a node need "
                                f"{tasks * each} CPUs, and the job has {have} there; "
                                "#SBATCH --cpus-per-task requests them")


def _bound(requested: dict[str, str], task: int) -> dict[str, str]:
    """Return the variable with the CPUs that a task is bound to, if it is. Raises BadOption.

    Args:
        requested: srun's options.
        task: the task's number on its node.
    """
    named = requested.get("cpu-bind", os.environ.get("SLURM_CPU_BIND", ""))
    try:
        return binding.srun_cpu_bind(named, task)
    except ValueError as error:
        raise options.BadOption(f"--cpu-bind={named}: {error}") from error


def next_step(record: str) -> int:
    """Return a new step number, unique even for concurrent steps (srun ... &)."""
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
        append_launch(record, "scontrol", arguments)
    return 0
