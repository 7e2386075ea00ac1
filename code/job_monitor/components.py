"""A job as Slurm describes it; the components of a run on several GPU kinds are one job.

Slurm lists each component of a heterogeneous job, and each job that joins a master job
(lab/submit), as a job of its own. The ranks of all of them form one world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError
from slurmbox import jobrecords

NODE_FILES = Path("megatron/logs")  # in the workspace; has JOBID/NODE.out, .err, and .gpu


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm describes it. GPUs and tasks are None if the job requested none.

    Attributes:
        number: its ID.
        name: its name.
        state: such as "RUNNING".
        reason: why it is pending.
        elapsed: its elapsed time, as Slurm prints it.
        limit: its time limit, as Slurm prints it.
        start: its start time, as Slurm prints it.
        end: its end time, as Slurm prints it.
        nodes: its node list.
        node_count: the number of nodes.
        gpus: the number of GPUs in all.
        tasks: the number of tasks in all.
        exit_code: as Slurm prints it.
        command: the script and its arguments.
        folder: its working directory.
        out: the file of its standard output.
        err: the file of its standard error.
        leader: the ID of the heterogeneous job that it is a component of, which is the ID of the
            first component.
        joined: the IDs of the jobs that joined it.
        gpus_per_node: GPUs per node of each component, if there are several.
        joined_logs: the log files of the jobs that joined it.
        states: (ID, state) of each component, if there are several and Slurm knows them.
    """

    number: int
    name: str
    state: str
    reason: str = ""
    elapsed: str = ""
    limit: str = ""
    start: str = ""
    end: str = ""
    nodes: str = ""
    node_count: int | None = None
    gpus: int | None = None
    tasks: int | None = None
    exit_code: str = ""
    command: str = ""
    folder: str = ""
    out: Path | None = None
    err: Path | None = None
    leader: int | None = None
    joined: tuple[int, ...] = ()
    gpus_per_node: tuple[int | None, ...] = ()
    joined_logs: tuple[Path, ...] = ()
    states: tuple[tuple[int, str], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state not in jobrecords.ACTIVE

    @property
    def logs(self) -> list[Path]:
        """Its log files, standard error first; one if both streams are in the same file."""
        return list(dict.fromkeys(path for path in (self.err, self.out, *self.joined_logs) if path))


def combine(parts: Sequence[SlurmJob]) -> SlurmJob:
    """Return one job with the nodes, GPUs, and tasks of all components; the rest is the first's.

    Args:
        parts: the components in the order of their node ranks, at least one.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    joined = [part for part in parts[1:] if part.leader is None]
    return replace(
        first, nodes=",".join(part.nodes for part in parts if part.nodes),
        node_count=_sum([part.node_count for part in parts]),
        gpus=_sum([part.gpus for part in parts]), tasks=_sum([part.tasks for part in parts]),
        gpus_per_node=tuple(count for part in parts
                            for count in part.gpus_per_node or (_per_node(part),)),
        states=tuple(pair for part in parts
                     for pair in part.states or ((part.number, part.state),)),
        joined=tuple(part.number for part in joined),
        joined_logs=tuple(path for part in joined for path in part.logs))


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(counts)


def _per_node(part: SlurmJob) -> int | None:
    return part.gpus // part.node_count if part.gpus and part.node_count else None


def joined_jobs(master: SlurmJob, find: Callable[[int], SlurmJob | None]) -> list[SlurmJob]:
    """Return the jobs that have joined a master job, in the order of their node ranks.

    Each of them wrote its ID to the file joined.PART in the master's folder. It also has the
    master's ID as an argument, so files left by an earlier cluster are ignored.

    Args:
        master: the master job; any other job has no such file.
        find: looks up a job by its ID; it returns None or raises LabError for an unknown one.
    """
    folder = workspace.home() / NODE_FILES / str(master.number)
    joined = []
    for path in sorted(folder.glob("joined.[0-9]*"), key=lambda path: (len(path.name), path.name)):
        try:
            part = find(int(path.read_text()))
        except (OSError, ValueError, LabError):  # ValueError: the file is being written
            continue
        if part is not None and str(master.number) in part.command.split()[1:]:
            joined.append(part)
    return joined
