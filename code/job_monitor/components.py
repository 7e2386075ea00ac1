"""Combine the components of a run on several GPU kinds into one job.

Slurm lists each component of a heterogeneous job, and each job that joins a master job
(lab/submit), as a job of its own. The ranks of all of them form one world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from job_monitor.slurm import SlurmJob

NODE_FILES = Path("megatron/logs")  # in the workspace; has JOBID/NODE.out, .err, and .gpu


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
