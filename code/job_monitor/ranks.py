"""The ranks' status files (see minimegatron/logging/status.py), and whether their processes live.

The files are a job's: nothing in them is trusted to have the right type.
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
LONGEST = 200  # characters of a text
STATUS = f"{STATUS_VARIABLE}=".encode()


@dataclass(frozen=True)
class Rank:
    """One file. Memory in bytes; loss and tflops: of the log's last line; milliseconds: of the last
    step, on the device's clock; pace: seconds between two steps, on this machine's; written: when.
    on_card: memory_used is all that is in use on the rank's card (CUDA's context, NCCL's buffers,
    what PyTorch reserves); else memory_used is what memory_peak is the peak of.
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


def read(folder: Path) -> dict[int, Rank]:
    """The ranks of the latest run in a job's folder; none where it has no files."""
    try:
        files = list(folder.iterdir())
    except OSError:
        return {}
    found = [rank for path in files if (rank := _load(path))]
    if not found:
        return {}
    latest = max(found, key=lambda rank: rank.started)  # a job may run the trainer several times
    size = latest.world_size or 1 + max(rank.number for rank in found)
    chosen = [rank for rank in sorted(found, key=lambda rank: rank.number)
              if rank.number < size and rank.world_size == latest.world_size]
    last = max(rank.stage for rank in chosen)  # the only one with a loss
    return {rank.number: rank if rank.stage == last else replace(rank, loss=None)
            for rank in chosen}


def _load(path: Path) -> Rank | None:
    own = rankfiles.number_of(path)
    fields = None if own is None else rankfiles.read(path)
    if own is None or fields is None:
        return None

    def number(name: str) -> float | None:
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if isinstance(value, int):
            return value if abs(value) < rankfiles.WHOLE else None
        return value if math.isfinite(value) else None

    def whole(name: str) -> int | None:
        value = number(name)
        return int(value) if value is not None and abs(value) < rankfiles.WHOLE else None

    def text(name: str) -> str:
        value = fields.get(name)
        return value[:LONGEST] if isinstance(value, str) else ""

    place = fields.get("place")
    stage = place.get("pp") if isinstance(place, dict) else 0
    used = number("memory_used")
    size = whole("world_size")
    if size is not None and size <= own:
        return None
    loss = fields.get("loss")  # may be nan: that is worth showing
    slot = whole("slot")  # the card's number on its node; "gpu" is the job's own
    gpu = whole("gpu") if slot is None else slot
    return Rank(
        own, text("node"), gpu, whole("pid"), text("device"),
        fields.get("modeled") is True, stage if isinstance(stage, int) else 0,
        size, text("state") or "starting", whole("iteration") or 0,
        whole("train_iters"), number("milliseconds"), number("pace"),
        loss if isinstance(loss, float) else number("loss"), number("tflops"),
        number("virtual_seconds"), number("allocated") if used is None else used,
        number("max_allocated"), number("memory_total"), used is not None,
        number("started") or 0.0, number("time") or 0.0)


def processes(layout: Layout) -> Path | None:
    """The /proc in which the PIDs of this cluster's jobs are right; None: a cluster elsewhere."""
    if Path(MARKER).exists():  # this is one of its nodes
        return Path("/proc")
    record, supervisor = health.read_record(layout), health.supervisor(layout)
    if layout.site.exists() or record is None or supervisor is None:
        return None
    if record["place"]["mode"] == "loopback":
        return Path("/proc")
    return Path(f"/proc/{supervisor[0]}/root/proc")


def process(proc: Path | None, job: int, rank: Rank) -> str | None:
    """ALIVE, STOPPED or GONE; None where that cannot be known. A PID that another process has by
    now is GONE: the process says in its environment whose it is. In a job that joined another, the
    folder for the status files names the job, and SLURM_JOB_ID does not."""
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
