"""Find the virtual GPUs of each node, and the processes that run on them now."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from labcore import rankfiles
from slurmbox.profile import UNLIMITED, from_json
from virtualgpu.core.card import Card
from virtualgpu.core.cards import CARDS
from virtualgpu.smi.gpus import Gpu, GpuProcess

FRESH = 15.0  # seconds; a live rank writes its file twice a second
MAX_JOBS = 50  # most recently written jobs whose files are read


def declared_gpus(record: dict) -> dict[str, list[Card]]:
    """Return the GPU models of each node of the running cluster; empty lists if it has none."""
    return {node.name: [CARDS[node.card]] * node.gpus if node.card else []
            for node in from_json(record["profile"]).nodes}


def has_fabric(record: dict) -> bool:
    """Return whether the nodes have the network that their GPU model comes with.

    They do unless --link was given.
    """
    return from_json(record["profile"]).link == UNLIMITED


def running_processes(folder: Path, proc: Path) -> list[GpuProcess]:
    """Return the processes that are alive.

    Args:
        folder: the folder with a folder of rank files for each job.
        proc: a /proc in which the recorded process IDs are valid. If it is rankfiles.ELSEWHERE,
            there is none, and processes that wrote their file lately count as alive.
    """
    live = []
    for path in (path for job in _latest(folder) for path in job.glob("*.json")):
        try:
            process = parse_process(rankfiles.read(path) or {})
        except (ValueError, KeyError, TypeError, OverflowError):  # not a rank on a virtual GPU
            continue
        if is_fresh(path) if str(proc) == rankfiles.ELSEWHERE else is_alive(proc, process):
            live.append(process)
    return live


def is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH
    except OSError:  # removed in the meantime
        return False


def _latest(folder: Path) -> list[Path]:
    def written(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # removed in the meantime
            return 0.0

    try:
        return sorted(folder.iterdir(), key=written)[-MAX_JOBS:]
    except OSError:
        return []


def parse_process(fields: dict) -> GpuProcess:
    """Parse a rank file.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: it does not describe a process on a
            virtual GPU.
    """
    slot = fields["slot"]
    process = GpuProcess(
        str(fields["node"]), int(fields["job"]), int(fields["gpu"]),
        None if slot is None else int(slot), int(fields["pid"]), CARDS[fields["card"]],
        int(fields["memory_used"]), int(fields["memory_total"]), float(fields["utilization"]))
    numbers = (process.job, process.local, process.slot or 0, process.pid, process.used,
               process.total)
    if not all(0 <= value < rankfiles.MAX_INTEGER for value in numbers):
        raise ValueError("a number of a rank is negative or too large")
    if not 0 <= process.utilization <= 1:  # false for nan, too
        raise ValueError(f"utilization {process.utilization} is not between 0 and 1")
    return process


def is_alive(proc: Path, process: GpuProcess) -> bool:
    """Return whether a process is alive and belongs to its job.

    Process IDs are reused, so its environment decides; a zombie has none.

    Args:
        proc: the /proc file system.
        process: what its status file says.
    """
    try:
        words = (proc / str(process.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"SLURM_JOB_ID=%d" % process.job in words


def assign(nodes: dict[str, list[Card]], processes: Iterable[GpuProcess], fabric: bool = False
           ) -> dict[str, list[Gpu]]:
    """Assign each process a GPU, and return the GPUs of each node, in order.

    A process is on the GPU that Slurm gave its job. Jobs that requested no GPUs all count theirs
    from 0, so they take the first free GPUs, in the order of their IDs. If a node declares too few
    GPUs, more are added.

    Args:
        nodes: the GPU models of each node.
        processes: the live processes.
        fabric: see has_fabric.
    """
    assigned: dict[str, dict[int, Gpu]] = {
        name: {number: Gpu(name, number, number, card, fabric=fabric)
               for number, card in enumerate(cards)}
        for name, cards in nodes.items()}
    for process in sorted(processes, key=lambda one: (one.slot is None, one.job, one.local)):
        gpus = assigned.get(process.node)
        if gpus is None:
            continue
        taken = {number for number, gpu in gpus.items() if gpu.process}
        number = process.slot
        if number is None or number in taken or number not in gpus:
            number = next(free for free in range(len(taken) + 1) if free not in taken)
        # A job may model another GPU than its node declares; the job's counts.
        gpus[number] = Gpu(process.node, number, number, process.card, process, fabric)
    return {name: [gpus[number] for number in sorted(gpus)] for name, gpus in assigned.items()}


def job_gpus(gpus: list[Gpu], environment: dict[str, str]) -> list[Gpu]:
    """Return the GPUs that a job sees: its own, numbered from 0, or all if it requested none.

    Args:
        gpus: the GPUs of the node.
        environment: the job's environment variables.
    """
    given = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
    numbers = {int(word) for word in given.split(",") if word.strip().isdecimal()}
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    if not numbers and count.isdecimal():
        numbers = set(range(int(count)))
    if not numbers:
        return gpus
    job = environment.get("SLURM_JOB_ID")
    own = [gpu for gpu in gpus
           if gpu.number in numbers or (gpu.process and str(gpu.process.job) == job)]
    return [replace(gpu, index=index) for index, gpu in enumerate(own)]
