"""Read the ranks' status files (see minimegatron/report/status.py) and check their processes.

A job can write anything to its files, so every type is checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from labcore import rankfiles
from slurmbox import health
from slurmbox.config import STATUS_VARIABLE
from slurmbox.layout import Layout
from slurmbox.namespaces import MARKER

ALIVE, STOPPED, GONE = "alive", "stopped", "gone"
MAX_LENGTH = 200  # characters of a string
STATUS = f"{STATUS_VARIABLE}=".encode()


@dataclass(frozen=True)
class RankStatus:
    """The status file of a rank. Times are in seconds since the epoch, memory is in bytes.

    Attributes:
        number: the rank.
        node: the node's name.
        gpu: the number of its GPU on the node, or else its index within the job.
        pid: its process ID, in the cluster's PID namespace.
        device: the name of its device.
        modeled: whether the device is a virtual GPU.
        stage: its pipeline stage.
        world_size: the number of ranks.
        state: what it is doing, such as "training" or "saving".
        iteration: its last iteration.
        train_iters: the last iteration of the run.
        milliseconds: elapsed time of the last step, on the device's clock.
        pace: seconds per step, on this machine's clock.
        loss: the loss in the log's last line.
        tflops: TFLOP/s per GPU in the log's last line.
        virtual_seconds: modeled time since the start.
        memory_used: all memory in use on its GPU if `on_card` is set (CUDA's context, NCCL's
            buffers, PyTorch's reserved memory); otherwise the memory that memory_peak is the
            peak of.
        memory_peak: the peak memory of its tensors, or of its process on the CPU.
        memory_total: the GPU's memory.
        on_card: see memory_used.
        started: the time of its start.
        written: the time of the last update.
    """

    number: int
    node: str = ""
    gpu: int | None = None
    pid: int | None = None
    device: str = ""
    modeled: bool = False
    stage: int = 0
    world_size: int | None = None
    state: str = "starting"
    iteration: int = 0
    train_iters: int | None = None
    milliseconds: float | None = None
    pace: float | None = None
    loss: float | None = None
    tflops: float | None = None
    virtual_seconds: float | None = None
    memory_used: float | None = None
    memory_peak: float | None = None
    memory_total: float | None = None
    on_card: bool = False
    started: float = 0.0
    written: float = 0.0


def read(folder: Path) -> dict[int, RankStatus]:
    """Return the ranks of the latest run in a job's folder; empty if the folder has no files."""
    try:
        files = list(folder.iterdir())
    except OSError:
        return {}
    statuses = [rank for path in files if (rank := _load(path))]
    if not statuses:
        return {}
    latest = max(statuses, key=lambda rank: rank.started)  # a job may run several trainers
    size = latest.world_size or 1 + max(rank.number for rank in statuses)
    current = [rank for rank in sorted(statuses, key=lambda rank: rank.number)
               if rank.number < size and rank.world_size == latest.world_size]
    last = max(rank.stage for rank in current)  # only the last stage has a loss
    return {rank.number: rank if rank.stage == last else replace(rank, loss=None)
            for rank in current}


def _load(path: Path) -> RankStatus | None:
    own = rankfiles.rank_number(path)
    fields = None if own is None else rankfiles.read(path)
    if own is None or fields is None:
        return None

    def number(name: str) -> float | None:
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, int):
            return value if abs(value) < rankfiles.MAX_INTEGER else None
        return value if math.isfinite(value) else None

    def integer(name: str) -> int | None:
        value = number(name)
        return int(value) if value is not None and abs(value) < rankfiles.MAX_INTEGER else None

    def text(name: str) -> str:
        value = fields.get(name)
        return value[:MAX_LENGTH] if isinstance(value, str) else ""

    place = fields.get("place")
    stage = place.get("pp") if isinstance(place, dict) else 0
    used = number("memory_used")
    size = integer("world_size")
    if size is not None and size <= own:
        return None
    loss = fields.get("loss")  # nan is kept, because users need to see it
    slot = integer("slot")  # the GPU's number on its node; "gpu" is the index within the job
    gpu = integer("gpu") if slot is None else slot
    return RankStatus(
        own, text("node"), gpu, integer("pid"), text("device"),
        fields.get("modeled") is True, stage if isinstance(stage, int) else 0,
        size, text("state") or "starting", integer("iteration") or 0,
        integer("train_iters"), number("milliseconds"), number("pace"),
        loss if isinstance(loss, float) else number("loss"), number("tflops"),
        number("virtual_seconds"), number("allocated") if used is None else used,
        number("max_allocated"), number("memory_total"), used is not None,
        number("started") or 0.0, number("time") or 0.0)


def processes(layout: Layout) -> Path | None:
    """Return the /proc in which the PIDs of this cluster's jobs are valid.

    Returns None if the cluster runs on another machine.
    """
    if Path(MARKER).exists():  # this process runs on one of the cluster's nodes
        return Path("/proc")
    record, supervisor = health.read_record(layout), health.supervisor(layout)
    if layout.site.exists() or record is None or supervisor is None:
        return None
    if record["place"]["mode"] == "loopback":
        return Path("/proc")
    return Path(f"/proc/{supervisor[0]}/root/proc")


def process(proc: Path | None, job: int, rank: RankStatus) -> str | None:
    """Return the state of a rank's process: ALIVE, STOPPED, or GONE; None if it is unknown.

    A PID that now belongs to another process counts as GONE, because a rank's process has its job
    and its rank in its environment. In a job that joined another, SLURM_JOB_ID does not name the
    job, but the folder for the status files does.

    Args:
        proc: the /proc in which PIDs are valid, as from `processes`.
        job: the ID of its job.
        rank: its status file.
    """
    if proc is None or rank.pid is None or not proc.is_dir():
        return None
    try:
        state = (proc / str(rank.pid) / "stat").read_text().rpartition(")")[2].split()[0]
        words = (proc / str(rank.pid) / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return None
    except (OSError, IndexError):
        return GONE
    own = any(word == f"SLURM_JOB_ID={job}".encode() or (
        word.startswith(STATUS) and word.endswith(f"/{job}".encode())) for word in words)
    if state in "ZX" or not own:
        return GONE
    named = [word for word in words if word.startswith(b"RANK=")]
    if named and named[0] != f"RANK={rank.number}".encode():
        return GONE
    return STOPPED if state in "Tt" else ALIVE
