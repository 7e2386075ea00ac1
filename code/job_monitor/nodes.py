"""Read what each node of a job wrote to its own files: its output, its errors, and its GPUs.

The batch scripts of `lab submit` keep them in megatron/logs/JOBID/ (code/run_node.sh): NODE.out,
NODE.err, and NODE.gpu, the last table of nvidia-smi, real or virtual.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from job_monitor import causes
from job_monitor.components import NODE_FILES
from labcore import workspace

SUFFIXES = (".out", ".err", ".gpu")
# nvidia-smi's table: a GPU has two lines, the second with its memory and utilization.
NAME = re.compile(r"^\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A)\s+\|")
MEMORY = re.compile(r"\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|\s*(\d+%|N/A)")
PROCESS = re.compile(r"^\|\s+(\d+)\s+\S+\s+\S+\s+(\d+)\s+(?:C|G|C\+G|M\+C)\s")


class Gpu(NamedTuple):
    """A GPU in nvidia-smi's table.

    Attributes:
        slot: its number on the node.
        name: the GPU model.
        used: memory in use, in MiB.
        total: its memory, in MiB.
        utilization: as printed, such as "72%".
        processes: IDs of the processes on it.
    """

    slot: int
    name: str
    used: int
    total: int
    utilization: str
    processes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """The files of one node; None for a file that it has not written.

    Attributes:
        name: the node.
        out: lines of standard output.
        err: lines of standard error.
        gpu: lines of the last nvidia-smi.
        seen: when nvidia-smi ran, in seconds since the epoch.
    """

    name: str
    out: list[str] | None = None
    err: list[str] | None = None
    gpu: list[str] | None = None
    seen: float = 0.0

    @property
    def gpus(self) -> list[Gpu]:
        return table(self.gpu or ())


def read(job: int) -> list[Node]:
    """Return the nodes that wrote files of a job, by name; empty if none did.

    Args:
        job: its ID; of joined jobs, the master's.
    """
    folder = workspace.home() / NODE_FILES / str(job)
    names = {path.stem for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")}
    return [_node(folder, name) for name in sorted(names, key=_natural)]


def _natural(name: str) -> tuple:
    """Return a key that puts node2 before node10."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def _node(folder: Path, name: str) -> Node:
    out, err, gpu = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
    try:
        seen = gpu.stat().st_mtime
    except OSError:
        seen = 0.0
    return Node(name, *(causes.read(path) if path.is_file() else None
                        for path in (out, err, gpu)), seen)


def table(lines: Sequence[str]) -> list[Gpu]:
    """Return the GPUs in nvidia-smi's table, by number; empty if the lines are no such table."""
    found: dict[int, Gpu] = {}
    named: tuple[int, str] | None = None
    for line in lines:
        if (match := PROCESS.match(line)) and int(match[1]) in found:
            one = found[int(match[1])]
            found[one.slot] = one._replace(processes=(*one.processes, int(match[2])))
        elif match := NAME.match(line):
            named = int(match[1]), match[2]
        elif named and (match := MEMORY.search(line)):
            found[named[0]] = Gpu(*named, int(match[1]), int(match[2]), match[3])
            named = None
    return [found[slot] for slot in sorted(found)]
