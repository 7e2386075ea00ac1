"""The allocation that Slurm would give a job: the options in its script's header, its nodes, tasks,
and CPUs, and its environment.

A heterogeneous job has several components, each with options, nodes, and an ID of its own. Its
batch script runs on the first one, and sees variables of each (Slurm 22.05).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from labkit.check import options

NODE = "slurmnode"  # the job's nodes are slurmnode1, slurmnode2, ...
CPUS = 32  # of a node, as in slurmbox.profile, which may be masked here
# No option of Slurm's: the CPUs of the cluster's nodes, which record.py adds to --exclusive if they
# have fewer. Of larger nodes, jobs get as many as grading assumes, where there is no cluster.
CPUS_OF_CLUSTER = "cpus-of-cluster"
MOST_COMPONENTS = 128  # of a job (MAX_HET_JOB_COMPS in slurm.h)
# Slurm sets these only per component: a batch script sees ..._HET_GROUP_0, and so on.
PER_COMPONENT = {"ntasks-per-node": "SLURM_NTASKS_PER_NODE", "cpus-per-task": "SLURM_CPUS_PER_TASK",
                 "gpus-per-node": "SLURM_GPUS_PER_NODE", "gpus": "SLURM_GPUS"}
OF_ALL = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES",
          "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_PARTITION", "SLURM_TASKS_PER_NODE")
TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
# The end of a here-document: a word behind << or <<-, which <<< is not. Quoted or not.
HERE_DOCUMENT = re.compile(r"""(?<!<)<<-?[ \t]*\\?(['"]?)([A-Za-z_][\w.-]*)\1""")
OPPOSITES = {"requeue": "no-requeue", "no-requeue": "requeue"}  # the later one holds
SEPARATOR = re.compile(r"#SBATCH\s+(het|pack)job(\s.*|$)")


def directives(script: str) -> tuple[list[dict[str, str]], list[str]]:
    """Return the options that sbatch reads from a script, and notes on lines that it ignores.

    The options are those of each component of a heterogeneous job; any other job has one.
    """
    components: list[dict[str, str]] = [{}]
    notes: list[str] = []
    lines = script.splitlines()
    if not lines or not lines[0].startswith("#!"):
        notes.append("sbatch refuses a script whose first line does not begin with #! : "
                     "begin with #!/bin/bash")
    reading, ends = True, []  # the ends of the here-documents that the next lines are in
    for number, line in enumerate(lines, 1):
        if ends:
            if line.lstrip("\t") == ends[0]:
                del ends[0]
            continue
        if re.match(r"#\s+SBATCH\s|\s+#\s*SBATCH\s|#sbatch\s", line):
            notes.append(f"line {number}: Slurm treats {line.strip()!r} as a comment: "
                         "it must begin with #SBATCH, without spaces before or in it")
        elif re.match(r"#SBATCH\b", line):
            if not reading:
                notes.append(f"line {number}: Slurm does not read {line!r}: "
                             "#SBATCH lines come before the first command")
                continue
            if separator := SEPARATOR.match(line):
                notes += _separator_notes(separator, number)
                components.append({name: value for name, value in components[-1].items()
                                   if name in options.INHERITED})
            else:
                _read_directive(line, number, components[-1], notes)
        elif line.strip() and not line.startswith("#"):
            reading = False
            ends = [match[2] for match in HERE_DOCUMENT.finditer(line)]
    if len(components) > MOST_COMPONENTS:
        notes.append(f"#SBATCH hetjob: {len(components)} components, and Slurm accepts at most "
                     f"{MOST_COMPONENTS}")
    return components[:MOST_COMPONENTS], notes


def _separator_notes(separator: re.Match[str], number: int) -> Iterator[str]:
    """Yield what is wrong with a line that ends a component's options."""
    if separator[1] == "pack":
        yield (f"line {number}: #SBATCH packjob is the deprecated name of #SBATCH hetjob: "
               "write that")
    rest = separator[2].partition("#")[0].strip()
    if rest:
        yield (f"line {number}: Slurm does not read {rest!r}: #SBATCH hetjob stands alone, between "
               "the options of two components")


def _read_directive(line: str, number: int, requested: dict[str, str], notes: list[str]) -> None:
    try:
        parsed, rest = options.parse(shlex.split(line[len("#SBATCH"):], comments=True), "sbatch")
        for name, value in parsed.items():
            requested.pop(OPPOSITES.get(name, ""), None)
            requested[name] = value
        if rest:
            notes.append(f"line {number}: sbatch does not understand {rest[0]!r}")
    except (options.BadOption, ValueError) as error:
        notes.append(f"line {number}: {error}")


@dataclass(frozen=True)
class Component:
    """Nodes that one group of #SBATCH options requests; any job has at least one.

    Attributes:
        directives: the options, by their long names.
        first: the number of its first node in the whole job, from 0.
    """

    directives: dict[str, str]
    first: int = 0

    @cached_property
    def nodes(self) -> int:
        """Return the number of its nodes."""
        return nodes_of(self.directives)

    @property
    def gpus_per_node(self) -> int:
        """Return the number of GPUs on each of its nodes."""
        return options.gpus_of_nodes(self.directives, self.nodes)[0]

    @property
    def gpu(self) -> str:
        """Return the GPU kind that its options name, such as "a100"; "" if they name none."""
        return options.gpu_kind(self.directives)

    @property
    def cpus_per_node(self) -> int:
        """Return the number of CPUs on each of its nodes."""
        try:
            return cpus_of_node(self.directives)
        except options.BadOption:  # reported separately
            return 1


def components_of(requested: Sequence[dict[str, str]]) -> tuple[Component, ...]:
    """Return the components with these options, whose nodes are numbered in order."""
    firsts = accumulate(map(nodes_of, requested[:-1]), initial=0)
    return tuple(Component(one, first) for one, first in zip(requested, firsts, strict=True))


def component_at(host: str, components: Sequence[Component]) -> int | None:
    """Return the number of the component that a node belongs to; None if it is not in the job.

    Args:
        host: the node's name.
        components: the job's components, in order.
    """
    match = re.fullmatch(NODE + r"([1-9][0-9]{0,9})", host)
    place = int(match[1]) - 1 if match else -1
    return next((number for number, one in enumerate(components)
                 if one.first <= place < one.first + one.nodes), None)


def nodes_of(directives: Mapping[str, str]) -> int:
    """Return the number of nodes that options request; 1 if they are wrong, which is a problem."""
    try:
        return allocated(directives)[0]
    except options.BadOption:
        return 1


def allocated(directives: Mapping[str, str]) -> tuple[int, int]:
    """Return the numbers of nodes and tasks of a job with these directives. Raises BadOption."""
    per_node = directives.get("ntasks-per-node")
    tasks = options.count(directives.get("ntasks"), 1)
    fitting = -(-tasks // options.count(per_node, tasks)) if "ntasks" in directives else 1
    nodes = options.count(directives.get("nodes"), fitting)
    if per_node and "ntasks" not in directives:
        tasks = nodes * options.count(per_node, 1)
    return nodes, max(tasks, nodes)


def cpus_of_node(directives: Mapping[str, str]) -> int:
    """Return the CPUs per node that these directives request. Raises BadOption."""
    nodes, tasks = allocated(directives)
    most = -(-tasks // nodes) * options.cpus(directives.get("cpus-per-task", "1"))
    if "cpus-per-gpu" in directives:
        gpus, _ = options.gpus_of_nodes(directives, nodes)
        most = max(most, gpus * options.cpus(directives["cpus-per-gpu"], "cpus-per-gpu"))
    most = max(most, options.cpus(directives.get("mincpus", "1"), "mincpus"))
    if "exclusive" not in directives:
        return most
    return max(most, options.cpus(directives.get(CPUS_OF_CLUSTER, str(CPUS)), CPUS_OF_CLUSTER))


def environment(requested: Sequence[dict[str, str]], notes: list[str], job_id: int = 1
                ) -> dict[str, str]:
    """Return the environment variables that Slurm would set for the batch script.

    Args:
        requested: the options of each component of the job.
        notes: receives what is wrong with them.
        job_id: the job's ID; each further component has the next one.
    """
    groups = components_of(requested)
    each = [_of_component(one, job_id + number, notes) for number, one in enumerate(groups)]
    if len(each) == 1:
        return each[0]
    variables = {name: value for name, value in each[0].items()
                 if name not in PER_COMPONENT.values()} | {"SLURM_HET_SIZE": str(len(each))}
    for number, mine in enumerate(each):
        tasks = {name: mine.get(name, str(groups[number].nodes)) for name in TASKS}
        variables |= {options.of_component(name, number): value for name, value
                      in (mine | tasks).items()
                      if name in (*OF_ALL, *TASKS, *PER_COMPONENT.values())}
        variables[options.of_component(options.GPUS_ON_NODE, number)] = mine.get(
            "SLURM_GPUS_ON_NODE", "")
    return variables


def _of_component(component: Component, number: int, notes: list[str]) -> dict[str, str]:
    """Return the environment variables of a job that has only this component.

    Args:
        component: its options and its place.
        number: its job ID.
        notes: receives what is wrong with the options.
    """
    directives = component.directives
    per_node = directives.get("ntasks-per-node")
    try:
        nodes, tasks = allocated(directives)
        cpus = cpus_of_node(directives)
    except options.BadOption as error:
        notes.append(f"#SBATCH: {error}")
        nodes, tasks, per_node, cpus = 1, 1, None, 1
    first, last = component.first + 1, component.first + nodes
    hosts = f"{NODE}{first}" if nodes == 1 else f"{NODE}[{first}-{last}]"
    variables = {
        "SLURM_JOB_ID": str(number), "SLURM_JOBID": str(number),
        "SLURM_JOB_NAME": directives.get("job-name", "job"),
        "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts, "SLURM_TASKS_PER_NODE": _spread(tasks, nodes),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": f"{NODE}{first}",
        "SLURM_JOB_PARTITION": directives.get("partition", "slurmpar"), "USER": "student",
        "TERM": "xterm", "SLURM_JOB_USER": "student", "SLURM_CLUSTER_NAME": "lab",
        "SLURM_SUBMIT_HOST": "slurmnode1", "SLURM_JOB_ACCOUNT": "student", "SLURM_GTIDS": "0",
        "SLURM_CPUS_ON_NODE": str(cpus), "SLURM_JOB_CPUS_PER_NODE": _spread(cpus * nodes, nodes)}
    if "ntasks" in directives or per_node:
        variables |= dict.fromkeys(TASKS, str(tasks))
    variables |= {name: directives[option] for option, name in PER_COMPONENT.items()
                  if option in directives}
    gpus, _ = options.gpus_of_nodes(directives, nodes)
    if gpus:
        variables["SLURM_GPUS_ON_NODE"] = str(gpus)
    return variables


def _spread(total: int, nodes: int) -> str:
    """Return how many of `total` each node has, as Slurm writes it: "3,2(x3)" of 9 on 4 nodes."""
    share, rest = divmod(total, nodes)
    return ",".join(f"{number}(x{times})" if times > 1 else str(number)
                    for number, times in ((share + 1, rest), (share, nodes - rest)) if times)
