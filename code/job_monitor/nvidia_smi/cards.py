"""The virtual GPUs of each node, and the processes that run on them now."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from labcore import rankfiles
from slurmbox.profile import UNLIMITED, from_json
from virtualgpu.core.card import Card
from virtualgpu.core.cards import CARDS
from virtualgpu.core.slots import bus

MIB = 2**20
FRESH = 15.0  # seconds since a rank there wrote, for it to be alive; it writes twice a second
JOBS = 50  # whose files are read at one look: those written to last, as live ranks do


@dataclass(frozen=True)
class Rank:
    """A process of a job that computes on a virtual card; memory in bytes, utilization 0 to 1."""

    node: str
    job: int
    local: int  # the process's index for its card
    slot: int | None  # the card's number on its node, where Slurm gave the job cards
    pid: int
    card: Card
    used: int
    total: int
    utilization: float


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        node: its node's name.
        number: on its node.
        index: as shown, from 0; inside a job, fewer are shown.
        card: the GPU model.
        rank: the process on it, if any.
        fabric: whether the node has the InfiniBand adapters of its type.
    """

    node: str
    number: int
    index: int
    card: Card
    rank: Rank | None = None
    fabric: bool = False

    @property
    def product(self) -> str:
        return f"{self.card.product} (virtual)"

    @property
    def bus_id(self) -> str:
        return f"00000000:{bus(self.number):02X}:00.0"

    @property
    def uuid(self) -> str:
        """Stable, made up: it starts with the letters of "virtual" in ASCII."""
        ours = zlib.crc32(f"{self.node} {self.number}".encode())
        return f"GPU-76697274-7561-6c00-{self.number:04x}-{self.card.sms:04x}{ours:08x}"

    @property
    def used(self) -> int:
        """MiB."""
        return self.rank.used // MIB if self.rank else 0

    @property
    def total(self) -> int:
        """MiB."""
        return (self.rank.total if self.rank else self.card.memory) // MIB

    @property
    def percent(self) -> int:
        """GPU utilization: the percentage of time in which a kernel ran."""
        return round(100 * self.rank.utilization) if self.rank else 0


def nodes_of(record: dict) -> dict[str, list[Card]]:
    """{node: its cards} of the running cluster's record; an empty list where it has none."""
    return {node.name: [CARDS[node.card]] * node.gpus if node.card else []
            for node in from_json(record["profile"]).nodes}


def has_fabric(record: dict) -> bool:
    """Return whether the nodes have the network that their GPU model comes with.

    They do unless --link was given.
    """
    return from_json(record["profile"]).link == UNLIMITED


def running(folder: Path, proc: Path) -> list[Rank]:
    """The ranks that live. folder: of the jobs' folders of rank files. proc: where the processes
    have the numbers that they themselves know, or ELSEWHERE of
    rankfiles: there whoever wrote lately lives."""
    found = []
    for path in (path for job in _latest(folder) for path in job.glob("*.json")):
        try:
            rank = parse(rankfiles.read(path) or {})
        except (ValueError, KeyError, TypeError, OverflowError):  # not a rank on a virtual card
            continue
        if is_fresh(path) if str(proc) == rankfiles.ELSEWHERE else is_alive(proc, rank):
            found.append(rank)
    return found


def is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < FRESH
    except OSError:  # it went meanwhile
        return False


def _latest(folder: Path) -> list[Path]:
    def written(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:  # it went meanwhile
            return 0.0

    try:
        return sorted(folder.iterdir(), key=written)[-JOBS:]
    except OSError:
        return []


def parse(fields: dict) -> Rank:
    """A rank file's content. Raises KeyError, TypeError, ValueError or OverflowError where it is
    another thing."""
    slot = fields["slot"]
    rank = Rank(
        str(fields["node"]), int(fields["job"]), int(fields["gpu"]),
        None if slot is None else int(slot), int(fields["pid"]), CARDS[fields["card"]],
        int(fields["memory_used"]), int(fields["memory_total"]), float(fields["utilization"]))
    sizes = rank.job, rank.local, rank.slot or 0, rank.pid, rank.used, rank.total
    if not all(0 <= size < rankfiles.WHOLE for size in sizes):
        raise ValueError("no number of a rank is that large, or below zero")
    if not 0 <= rank.utilization <= 1:  # also nan
        raise ValueError(f"utilization {rank.utilization}: from 0 to 1")
    return rank


def is_alive(proc: Path, rank: Rank) -> bool:
    """Return whether a rank's process is alive and belongs to the job.

    Process IDs are reused, so its environment decides; a zombie has none.

    Args:
        proc: the /proc file system.
        rank: the rank's status.
    """
    try:
        words = (proc / str(rank.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"SLURM_JOB_ID=%d" % rank.job in words


def place(nodes: dict[str, list[Card]], ranks: Iterable[Rank], fabric: bool = False
          ) -> dict[str, list[Gpu]]:
    """{node: its GPUs, in order}, with one rank at most on each.

    A rank sits where Slurm put it. Jobs that asked for no GPU all count theirs from 0: in the order
    of the jobs they take the first free ones; where a node declares too few, more are shown.

    Args:
        nodes: the GPU models of each node.
        ranks: those that live.
        fabric: see has_fabric.
    """
    placed: dict[str, dict[int, Gpu]] = {
        name: {number: Gpu(name, number, number, card, fabric=fabric)
               for number, card in enumerate(cards)}
        for name, cards in nodes.items()}
    for rank in sorted(ranks, key=lambda rank: (rank.slot is None, rank.job, rank.local)):
        gpus = placed.get(rank.node)
        if gpus is None:
            continue
        taken = {number for number, gpu in gpus.items() if gpu.rank}
        number = rank.slot
        if number is None or number in taken or number not in gpus:
            number = next(free for free in range(len(taken) + 1) if free not in taken)
        # What a job models counts, if it asked for another card than its node declares.
        gpus[number] = Gpu(rank.node, number, number, rank.card, rank, fabric)
    return {name: [gpus[number] for number in sorted(gpus)] for name, gpus in placed.items()}


def of_job(gpus: list[Gpu], environment: dict[str, str]) -> list[Gpu]:
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
    mine = [gpu for gpu in gpus
            if gpu.number in numbers or (gpu.rank and str(gpu.rank.job) == job)]
    return [replace(gpu, index=index) for index, gpu in enumerate(mine)]


def chosen(gpus: Iterable[Gpu], wanted: list[str]) -> Iterator[Gpu]:
    """Yield the GPUs with one of these indices, UUIDs, or bus IDs; all if none is given."""
    names = {word.lower() for word in wanted}
    return (gpu for gpu in gpus
            if not names or names & {str(gpu.index), gpu.uuid.lower(), gpu.bus_id.lower()})
