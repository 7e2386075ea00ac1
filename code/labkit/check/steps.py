"""srun, sbatch, and scontrol among the stand-ins: steps, IDs of jobs, and names of nodes.

stand_in.py has put this folder on sys.path.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import binding
from launch_record import STEP, append_launch, linger

import options

MOST_TASKS = 256
MOST_INPUT = 2**20  # bytes of standard input that tasks get
NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")


class StepPart:
    """The tasks of a step on one component of its job.

    Attributes:
        requested: srun's options.
        command: what each task runs.
        component: its number in a heterogeneous job; None in any other.
        tasks: the number of tasks on each of its nodes.
        names: its nodes.
    """

    def __init__(self, requested: dict[str, str], command: list[str], component: int | None
                 ) -> None:
        self.requested, self.command, self.component = requested, command, component
        self.tasks, nodes = layout(requested, component), hosts_of(requested, component)
        if len(nodes) < len(self.tasks):
            raise options.BadOption(f"{len(self.tasks)} node(s) requested, but only {len(nodes)} "
                                    "remain")
        self.names = nodes[:len(self.tasks)]


def variable(name: str, component: int | None) -> str:
    """Return the value of a Slurm variable, or "" if it is not set.

    Args:
        name: the variable's name.
        component: number of the component of a heterogeneous job, or None.
    """
    return os.environ.get(name if component is None else options.of_component(name, component), "")


def parts_of(arguments: list[str]) -> list[StepPart]:
    """Return the parts of a step, in the order of their components. Raises BadOption.

    In a heterogeneous job, a step without --het-group runs on the first component, and `:`
    separates the options and commands of several (srun -N1 ONE : -N2 OTHER).
    """
    size = os.environ.get("SLURM_HET_SIZE")
    if size is None:
        requested, command = options.parse(arguments, "srun")
        options.het_group(requested.get("het-group", "0"), 1)
        return [StepPart(requested, command, None)]
    parts: dict[int, StepPart] = {}
    requested: dict[str, str] = {}
    for words in _split(arguments):
        own, command = options.parse(words, "srun")
        requested = {name: value for name, value in requested.items()
                     if name in options.INHERITED} | own
        following = str(max(parts, default=-1) + 1)
        for component in options.het_group(own.get("het-group", following),
                                           options.count(size, 1)):
            parts[component] = StepPart(requested, command, component)
    return [part for _, part in sorted(parts.items())]


def _split(arguments: list[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for word in arguments:
        if word == ":":
            pieces.append([])
        else:
            pieces[-1].append(word)
    return pieces


def hosts_of(requested: dict[str, str], component: int | None = None) -> list[str]:
    """Return the nodes of the job, or of its component, that a step may use, in order.

    Raises BadOption.
    """
    nodes = options.expand(variable("SLURM_JOB_NODELIST", component))
    named = options.expand(requested.get("nodelist", ""))
    if unknown := [name for name in named if name not in nodes]:
        where = "this job" if component is None else f"component {component} of this job"
        raise options.BadOption(f"--nodelist {unknown[0]} is not a node of {where}; "
                                f"nearest: {nodes[0]}")
    first = options.count(requested["relative"], 1) if requested.get("relative", "0") != "0" else 0
    return sorted(nodes[first:], key=lambda name: name not in named)


def layout(requested: dict[str, str], component: int | None = None) -> list[int]:
    """Return the number of tasks on each node of a step, with srun's defaults.

    If the job has a number of tasks (SLURM_NTASKS), srun ignores an --ntasks-per-node that
    contradicts it.
    """
    name = "SLURM_NNODES" if component is None else "SLURM_JOB_NUM_NODES"
    allocated = options.count(variable(name, component) or None, 1)
    nodes = options.count(requested.get("nodes"), allocated)
    if nodes > allocated:
        where = "" if component is None else f" to component {component}"
        raise options.BadOption(f"{nodes} nodes requested, but only {allocated} allocated{where}")
    given = requested.get("ntasks") or variable("SLURM_NTASKS", component) or None
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
    parts = parts_of(arguments)
    tasks = sum(sum(part.tasks) for part in parts)
    if not all(part.command for part in parts) or tasks > MOST_TASKS:
        append_launch(record, "srun-refused", [f"{tasks} tasks of {parts[0].command[:1]}"])
        return 1
    for part in parts:
        _require(part)
    linger(record)
    step = next_number(record, "step")
    for part in parts:
        append_launch(record, "srun",
                      [f"--{name}={value}" for name, value in part.requested.items()], step)
    return _run_tasks(parts, step, tasks)


def _run_tasks(parts: list[StepPart], step: int, tasks: int) -> int:
    """Run the tasks of a step, which are numbered over all its components. Return the exit code.

    Each task gets a copy of srun's standard input, such as a here-document.

    Args:
        parts: the step's parts.
        step: the step's number.
    """
    names = [name for part in parts for name in part.names]
    given = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_INPUT)
    task = node = status = 0
    for part in parts:
        env = options.exported(part.requested.get("export") or os.environ.get("SLURM_EXPORT_ENV"),
                               dict(os.environ))
        env.pop(binding.MASK, None)  # slurmd starts the tasks, so they do not inherit srun's CPUs
        env |= {"SLURM_STEP_ID": str(step), STEP: f"{step}/{os.getpid()}",
                "SLURM_NNODES": str(len(names)), "SLURM_STEP_NUM_NODES": str(len(names)),
                "SLURM_NTASKS": str(tasks)}
        if part.component is not None:
            _describe_component(env, part.component, names)
        for name, here in zip(part.names, part.tasks, strict=True):
            for local in range(here):
                own = {"SLURM_PROCID": str(task), "SLURM_NODEID": str(node),
                       "SLURM_LOCALID": str(local), "SLURMD_NODENAME": name,
                       **_bound(part.requested, local)}
                command = _program_of(part, task)
                status = subprocess.run(command, env=env | own,
                                        cwd=part.requested.get("chdir"),
                                        input=given if "input" not in part.requested else b""
                                        ).returncode or status
                task += 1
            node += 1
    return status


def _program_of(part: StepPart, task: int) -> list[str]:
    """Return what a task runs: the step's command, or its line of the file of --multi-prog.

    A line has tasks, such as 0,2-3 or *, and a command, in which %t is the task's number and %o
    its place in the line's tasks. Raises BadOption.

    Args:
        part: the task's part of the step.
        task: the task's number in the step.
    """
    if "multi-prog" not in part.requested:
        return part.command
    path = part.command[0]
    try:
        with open(path) as file:
            lines = [shlex.split(line, comments=True) for line in file]
    except (OSError, ValueError) as error:
        raise options.BadOption(f"--multi-prog {path}: {error}") from error
    for tasks, *command in filter(None, lines):
        numbers = _numbers(tasks, path)
        if command and (numbers is None or task in numbers):
            place = task if numbers is None else numbers.index(task)
            return [word.replace("%t", str(task)).replace("%o", str(place)) for word in command]
    raise options.BadOption(f"--multi-prog {path}: no line has a program for task {task}")


def _numbers(tasks: str, path: str) -> list[int] | None:
    """Return the task numbers in a line of a --multi-prog file; None for all. Raises BadOption."""
    if tasks == "*":
        return None
    found: list[int] = []
    for piece in tasks.split(","):
        low, _, high = piece.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal() or len(high or low) > 4:
            raise options.BadOption(f"--multi-prog {path}: expected tasks, such as 0,2-3, and "
                                    f"found {tasks}")
        found += range(int(low), int(high or low) + 1)
    return found


def _describe_component(env: dict[str, str], component: int, names: list[str]) -> None:
    """Replace the variables of the job's first component, which the batch script has, by a step's.

    Args:
        env: the tasks' environment.
        component: number of the component that they run on.
        names: the nodes of the step, on all components.
    """
    env |= dict.fromkeys(NODE_LISTS, ",".join(names)) | {
        "SLURM_JOB_NUM_NODES": str(len(names)), "SLURM_NPROCS": env["SLURM_NTASKS"],
        "SLURM_CPUS_ON_NODE": str(cpus_on_node(component)),
        "SLURM_GPUS_ON_NODE": variable(options.GPUS_ON_NODE, component)}
    if not env["SLURM_GPUS_ON_NODE"]:
        del env["SLURM_GPUS_ON_NODE"]


def _require(part: StepPart) -> None:
    """Raise BadOption if a part of a step requests more CPUs than its nodes have, or begins in no
    folder."""
    folder = part.requested.get("chdir")
    if folder is not None and not options.can_enter(folder):
        raise options.BadOption(f"--chdir={folder}: there is no such folder that the tasks can "
                                "enter, so Slurm runs them in /tmp: give an absolute path")
    given = part.requested.get("cpus-per-task", os.environ.get("SRUN_CPUS_PER_TASK"))
    if given is None:
        return
    each, most, have = options.cpus(given), max(part.tasks), cpus_on_node(part.component)
    if most * each > have and "overcommit" not in part.requested:
        owner = "the job" if part.component is None else f"component {part.component} of the job"
        raise options.BadOption(f"--cpus-per-task={each}: {most} task(s) on a node need "
                                f"{most * each} CPUs, and {owner} has {have} there; "
                                "#SBATCH --cpus-per-task requests them")


def cpus_on_node(component: int | None) -> int:
    """Return the number of CPUs that the job, or its component, has on a node. Raises BadOption."""
    if component is None:
        return options.count(os.environ.get("SLURM_CPUS_ON_NODE"), 1)
    return options.count(variable("SLURM_JOB_CPUS_PER_NODE", component).partition("(")[0], 1)


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


def next_number(record: str, kind: str) -> int:
    """Return a new number of a step or a job, unique even for concurrent ones (srun ... &)."""
    number = 0
    while True:
        try:
            os.mkdir(f"{record}.{kind}{number}")
            return number
        except FileExistsError:
            number += 1


def sbatch(record: str, arguments: list[str]) -> int:
    """Print the ID of the job that would be submitted. Return sbatch's exit code.

    Args:
        record: the path of the record.
        arguments: sbatch's arguments.
    """
    append_launch(record, "sbatch", arguments)
    try:
        requested, _ = options.parse(arguments, "sbatch")
    except options.BadOption as error:
        print(f"sbatch: error: {error}", file=sys.stderr)
        return 1
    if "test-only" not in requested:
        own = os.environ.get("SLURM_JOB_ID", "")
        number = (int(own) if own.isdecimal() else 0) + 1 + next_number(record, "job")
        print(number if "parsable" in requested else f"Submitted batch job {number}")
    return 0


WITH_VALUES = ("-M", "--clusters", "-u", "--uid")  # scontrol's options that take the next word


def scontrol(record: str, arguments: list[str]) -> int:
    """Print the names of nodes, and note a change of a job. Return scontrol's exit code.

    Args:
        record: the path of the record.
        arguments: scontrol's arguments.
    """
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1 + (arguments[0] in WITH_VALUES):]
    if arguments[:2] in (["show", "hostnames"], ["show", "hostname"]):
        hosts = arguments[2] if len(arguments) > 2 else os.environ["SLURM_JOB_NODELIST"]
        print("\n".join(options.expand(hosts)))
    elif arguments[:2] == ["show", "hostlist"] and len(arguments) > 2:
        print(arguments[2])
    elif arguments and arguments[0] != "show":
        short = len(arguments[0]) >= 3 and "requeue".startswith(arguments[0].lower())
        append_launch(record, "scontrol", ["requeue" if short else arguments[0], *arguments[1:]])
    return 0
