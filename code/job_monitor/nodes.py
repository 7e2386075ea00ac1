"""Read the files of each node of a job: its output, its errors, and its GPUs.

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
# In nvidia-smi's table, a GPU has two lines. The second has its memory and utilization.
NAME = re.compile(r"^\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A)\s+\|")
MEMORY = re.compile(r"\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|\s*(\d+%|N/A)")
PROCESS = re.compile(r"^\|\s+(\d+)\s+\S+\s+\S+\s+(\d+)\s+(?:C|G|C\+G|M\+C)\s")


class ListedGpu(NamedTuple):
    """A GPU in nvidia-smi's table.

    Attributes:
        slot: its number on the node.
        name: the GPU model.
        used: memory in use, in MiB.
        total: its memory, in MiB.
        utilization: the printed text, such as "72%".
        processes: IDs of the processes on it.
    """

    slot: int
    name: str
    used: int
    total: int
    utilization: str
    processes: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeFiles:
    """The files of one node; a file that it has not written is None.

    Attributes:
        name: the node's name.
        out: lines of standard output.
        err: lines of standard error.
        gpu: lines of the last nvidia-smi.
        sampled: when nvidia-smi ran, in seconds since the epoch.
    """

    name: str
    out: list[str] | None = None
    err: list[str] | None = None
    gpu: list[str] | None = None
    sampled: float = 0.0

    @property
    def gpus(self) -> list[ListedGpu]:
        return parse_table(self.gpu or ())


def read(job: int) -> list[NodeFiles]:
    """Return the nodes that wrote files for a job, by name; empty if none did.

    Args:
        job: the job's ID; for joined jobs, the master's.
    """
    folder = workspace.home() / NODE_FILES / str(job)
    names = {path.stem for suffix in SUFFIXES for path in folder.glob(f"*{suffix}")}
    return [_read_node(folder, name) for name in sorted(names, key=_natural_order)]


def _natural_order(name: str) -> tuple:
    """Return a key that puts node2 before node10."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def _read_node(folder: Path, name: str) -> NodeFiles:
    out, err, gpu = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
    try:
        sampled = gpu.stat().st_mtime
    except OSError:
        sampled = 0.0
    return NodeFiles(name, *(causes.read(path) if path.is_file() else None
                             for path in (out, err, gpu)), sampled)


def parse_table(lines: Sequence[str]) -> list[ListedGpu]:
    """Return the GPUs in nvidia-smi's table, by number; empty if the lines are no such table."""
    gpus: dict[int, ListedGpu] = {}
    first_line: tuple[int, str] | None = None
    for line in lines:
        if (match := PROCESS.match(line)) and int(match[1]) in gpus:
            gpu = gpus[int(match[1])]
            gpus[gpu.slot] = gpu._replace(processes=(*gpu.processes, int(match[2])))
        elif match := NAME.match(line):
            first_line = int(match[1]), match[2]
        elif first_line and (match := MEMORY.search(line)):
            gpus[first_line[0]] = ListedGpu(*first_line, int(match[1]), int(match[2]), match[3])
            first_line = None
    return [gpus[slot] for slot in sorted(gpus)]
