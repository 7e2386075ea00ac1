"""Say why a job does not fit the cluster, and how to start one that it fits.

The cluster's sbatch runs it when Slurm finds a job too large, and srun and salloc run it first:
python -m lab.larger STATE COMMAND WORDS..., where the words are the command's.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import sys
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from labcore.errors import LabError
from labkit.check import allocation, options
from slurmbox import control, health
from slurmbox.config import node_memory
from slurmbox.layout import Layout
from slurmbox.profile import (
    CPUS,
    CUDA,
    MAX_CPUS,
    MAX_GPUS,
    MAX_MEMORY,
    MAX_NODES,
    UNLIMITED,
    ClusterProfile,
    NodeSpec,
    from_json,
    make,
)
from virtualgpu.core import cards
from virtualgpu.core.errors import UnknownCard

LARGEST = (f"no cluster is that large: it has at most {MAX_NODES} nodes, each with {MAX_GPUS} "
           f"GPUs, {MAX_CPUS} CPUs, and {MAX_MEMORY} GiB")
INTERACTIVE = ("--no-shell", "--bell", "--no-bell")  # salloc's own, which request nothing
GIB = {"": 2**-10, "k": 2**-20, "m": 2**-10, "g": 1, "t": 2**10}  # per unit of --mem


@dataclass
class Request:
    """What one component of a job requests; the numbers of all but the nodes are per node.

    Attributes:
        pool: the cluster's nodes that its partition and GPU kind leave.
        memory: in GiB; 0 if it does not say.
        kind: the GPU kind, in lowercase; "" for any.
    """

    pool: list[NodeSpec]
    nodes: int = 1
    gpus: int = 0
    cpus: int = 1
    memory: int = 0
    kind: str = ""


@dataclass
class Shape:
    """A cluster's nodes of each GPU kind, and what all nodes have.

    Attributes:
        kinds: the numbers of nodes and of GPUs per node; the kind None has no GPUs.
    """

    kinds: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    cpus: int = CPUS
    memory: int | None = None


def components(words: list[str], command: str) -> list[dict[str, str]]:
    """Return the options of each component of a job: the command's own, then those of sbatch's
    script.

    A script that sbatch read from its standard input cannot be read again. Raises BadOption.

    Args:
        words: the command's arguments.
        command: sbatch, srun, or salloc.
    """
    given, rest = [], [":", *(word for word in words if word not in INTERACTIVE)]
    while rest and rest[0] == ":":
        parsed, rest = options.parse(rest[1:], command)
        given.append(parsed)
        if command == "srun" and ":" in rest:  # each of its components has a program of its own
            rest = rest[rest.index(":"):]
    text = ""
    if rest and command == "sbatch" and "wrap" not in given[0]:
        with contextlib.suppress(OSError):
            text = Path(rest[0]).read_text(errors="replace")
    written, _ = allocation.directives(text)
    return [above | own for own, above in zip_longest(given, written, fillvalue={})]


def request(wanted: dict[str, str], profile: ClusterProfile) -> Request:
    """Return what a component requests, spread over nodes as Slurm would. Raises BadOption."""
    wanted = {name: value for name, value in wanted.items() if name != "exclusive"}
    kinds = [options.gpu_kind(wanted).partition(",")[0],
             *filter(_is_kind, (wanted.get("partition", ""), wanted.get("constraint", "")))]
    kind = next(filter(None, kinds), "")
    pool = [node for node in profile.nodes if kind in ("", node.gpu_type)]
    most = max((node.gpus for node in pool), default=0) or MAX_GPUS  # per node
    tasks, each = allocation.allocated(wanted)[1], 0
    if "gpus-per-task" in wanted:
        each = options.gpus_of_nodes(wanted | {"ntasks-per-node": "1", "ntasks": "1"}, 1)[0]
    if "nodes" not in wanted and "ntasks-per-node" not in wanted:
        cpus = options.cpus(wanted.get("cpus-per-task", "1"))
        fitting = min(max(profile.cpus // cpus, 1), max(most // each, 1) if each else tasks)
        total = 0 if each else options.gpus_of_nodes(wanted, 1)[0] if "gpus" in wanted else 0
        wanted["nodes"] = str(max(-(-tasks // fitting), -(-total // most)))
    nodes, tasks = allocation.allocated(wanted)
    gpus = each * -(-tasks // nodes) if each else options.gpus_of_nodes(wanted, nodes)[0]
    cpus = allocation.cpus_of_node(wanted)
    return Request(pool, nodes, gpus, cpus, _memory(wanted, cpus, gpus), kind)


def _is_kind(place: str) -> bool:
    """Return whether a partition or a feature has the name of a GPU kind."""
    try:
        return place == CUDA or bool(cards.find(place))
    except UnknownCard:
        return False


def _memory(wanted: dict[str, str], cpus: int, gpus: int) -> int:
    """Return the GiB per node that a component requests, rounded up; 0 if it does not say."""
    total = 0.0
    for name, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        if match := re.fullmatch(r"(\d{1,9})([kmgt]?)b?", wanted.get(name, "").lower()):
            total = max(total, times * int(match[1]) * GIB[match[2]])
    return math.ceil(total)


def excess(wanted: Request, profile: ClusterProfile) -> list[str]:
    """Return what a component requests more of than the cluster has, in words."""
    kind = wanted.kind.upper() + " " if wanted.kind else ""
    if not wanted.pool:
        return [f"{_number(wanted.nodes, 'node')} with {_number(wanted.gpus, kind + 'GPU')} "
                "(the cluster has none of this kind)"]
    gpus = max((node.gpus for node in wanted.pool), default=0)
    able = sum(node.gpus >= min(wanted.gpus, gpus) for node in wanted.pool)
    memory = node_memory(profile) // 1024
    rows = [(wanted.nodes, able, f"{kind}node", ""),
            (wanted.gpus, gpus, f"{kind}GPU", " per node"),
            (wanted.cpus, profile.cpus, "CPU", " per node"),
            (wanted.memory, memory, "GiB", " of memory per node")]
    return [f"{_number(many, unit)}{where} (the cluster has {has})"
            for many, has, unit, where in rows if many > has]


def _number(many: int, unit: str) -> str:
    return f"{many} {unit}" if many == 1 or unit == "GiB" else f"{many} {unit}s"


def enlarged(profile: ClusterProfile, requests: list[Request]) -> Shape:
    """Return the smallest cluster that has the current nodes, and more for these requests.

    The only kind of GPU gives way if all requests want another one.
    """
    shape = Shape({}, profile.cpus, profile.memory)
    for node in (node for node in profile.nodes if not node.real):
        count, gpus = shape.kinds.get(node.gpu_type, (0, 0))
        shape.kinds[node.gpu_type] = (count + 1, max(gpus, node.gpus))
    named = {wanted.kind for wanted in requests}
    if len(shape.kinds) == 1 and len(named) == 1 and not named <= {"", *shape.kinds}:
        [(count, _)] = shape.kinds.values()
        shape.kinds = {named.pop(): (count, 1)}
    used: dict[str | None, int] = {}
    for wanted in requests:
        kind = wanted.kind or max(shape.kinds, key=lambda kind: shape.kinds[kind][1])
        if wanted.gpus and kind is None:  # a cluster without GPUs gets some
            kind = "v100"
            shape.kinds = {kind: shape.kinds.pop(None)}
        used[kind] = used.get(kind, 0) + wanted.nodes
        count, gpus = shape.kinds.get(kind, (0, 0))
        others = 0 if wanted.kind or wanted.gpus else sum(
            many for other, (many, _) in shape.kinds.items() if other != kind)
        shape.kinds[kind] = (max(count, used[kind] - others),
                             max(gpus, wanted.gpus, 1 if kind else 0))
        shape.cpus = max(shape.cpus, wanted.cpus)
        if wanted.memory > node_memory(profile) // 1024:
            shape.memory = max(shape.memory or 0, wanted.memory)
    return shape


def start_of(shape: Shape, profile: ClusterProfile) -> str:
    """Return the command that starts a cluster of a shape. Raises LabError if there is none."""
    kinds = dict(shape.kinds)
    if len(kinds) > 1 and None in kinds:  # nodes without GPUs have no number in --gpus
        spare, _ = kinds.pop(None)
        first = next(iter(kinds))
        kinds[first] = (kinds[first][0] + spare, kinds[first][1])
    specs = {kind: f"{kind}:{gpus}" if kind else "none" for kind, (_, gpus) in kinds.items()}
    if len(kinds) == 1:
        [(kind, (count, _))] = kinds.items()
        words = ["--nodes", str(count), "--gpus", specs[kind]]
    else:
        words = ["--gpus", ",".join(f"{count}x{specs[kind]}"
                                    for kind, (count, _) in kinds.items())]
    nodes = int(words[1]) if len(kinds) == 1 else None
    make(nodes, words[-1], cpus=shape.cpus, memory=shape.memory)
    words += ["--cpus", str(shape.cpus)] if shape.cpus != CPUS else []
    words += ["--memory", str(shape.memory)] if shape.memory else []
    words += ["--link", profile.link] if profile.link != UNLIMITED else []
    words += ["--accounting"] if profile.accounting else []
    words += ["--mode", profile.mode] if profile.mode != "auto" else []
    return "lab cluster down; " + shlex.join(["lab", "cluster", "up", *words])


def size(profile: ClusterProfile) -> str:
    """Return what a cluster has, in words."""
    nodes = _number(len(profile.nodes), "node")
    return (f"the cluster has {nodes} with {profile.cpus} CPUs and {node_memory(profile) // 1024} "
            f"GiB each, GPUs per node: {profile.gpus} (lab cluster status)")


def advice(words: list[str], profile: ClusterProfile, command: str = "sbatch", *,
           fixed: bool = False) -> list[str]:
    """Return lines for a job that is too large for the cluster; its size for any other.

    Args:
        words: the command's arguments.
        command: sbatch, srun, or salloc.
        fixed: True for a cluster whose size `lab cluster` cannot change.
    """
    try:
        requests = [request(one, profile) for one in components(words, command)]
    except options.BadOption:  # Slurm has reported it
        return [size(profile)]
    problems = [line for wanted in requests for line in excess(wanted, profile)]
    if not problems:
        return [size(profile)]
    lines = ["the job asks for " + "; ".join(dict.fromkeys(problems))]
    if fixed or any(wanted.kind == CUDA for wanted in requests):
        return lines
    for kind in {wanted.kind for wanted in requests} - {""}:
        if not _is_kind(kind):
            return [*lines, f"there is no virtual GPU {kind!r}: lab devices lists them"]
    try:
        return [*lines, "for more: " + start_of(enlarged(profile, requests), profile)]
    except LabError:  # a number above the largest
        return [*lines, LARGEST]


def main(state: str, command: str, words: list[str]) -> None:
    record = health.read_record(Layout(Path(state).parent))
    if record:
        profile = from_json(record["profile"])
        lines = advice(words, profile, command, fixed=control.from_containers(record))
        if command != "sbatch" and lines == [size(profile)]:
            return  # Slurm has not refused it
        print("\n".join(f"{command}: {line}" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
