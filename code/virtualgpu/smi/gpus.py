"""The GPUs that `nvidia-smi` shows, and the processes on them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from virtualgpu.core.card import Card
from virtualgpu.core.slots import bus

MIB = 2**20


@dataclass(frozen=True)
class GpuProcess:
    """A process on a virtual GPU, as its status file describes it.

    Attributes:
        node: the node's name.
        job: the job's ID.
        local: the index of its GPU within the job.
        slot: the number of its GPU on the node; None if the job requested no GPUs.
        pid: the process ID, in the cluster's PID namespace.
        card: the GPU model.
        used: memory in use, in bytes.
        total: the GPU's memory, in bytes.
        utilization: the fraction of time in which a kernel ran, from 0 to 1.
    """

    node: str
    job: int
    local: int
    slot: int | None
    pid: int
    card: Card
    used: int
    total: int
    utilization: float


@dataclass(frozen=True)
class Gpu:
    """One virtual GPU of a node.

    Attributes:
        node: the node's name.
        number: its number on the node.
        index: the number that is shown; a job's own GPUs count from 0.
        card: the GPU model.
        process: the process on it, if any.
        fabric: whether the node has the InfiniBand adapters of its type.
        count: the number of GPUs that are shown of its node.
        cpus: the number of CPUs of its node.
    """

    node: str
    number: int
    index: int
    card: Card
    process: GpuProcess | None = None
    fabric: bool = False
    count: int = 1
    cpus: int = os.cpu_count() or 1

    @property
    def product(self) -> str:
        return f"{self.card.product} (virtual)"

    @property
    def bus_id(self) -> str:
        return f"00000000:{bus(self.number):02X}:00.0"

    @property
    def uuid(self) -> str:
        """A stable, invented UUID, which starts with the letters of "virtual" in ASCII."""
        checksum = zlib.crc32(f"{self.node} {self.number}".encode())
        return f"GPU-76697274-7561-6c00-{self.number:04x}-{self.card.sms:04x}{checksum:08x}"

    @property
    def used(self) -> int:
        """Memory in use, in MiB."""
        return self.process.used // MIB if self.process else 0

    @property
    def total(self) -> int:
        """The GPU's memory, in MiB."""
        return (self.process.total if self.process else self.card.memory) // MIB

    @property
    def percent(self) -> int:
        """GPU utilization: the percentage of time in which a kernel ran."""
        return round(100 * self.process.utilization) if self.process else 0


def select(gpus: Iterable[Gpu], wanted: list[str]) -> Iterator[Gpu]:
    """Yield the GPUs with one of these indices, UUIDs, or bus IDs; all if none is given."""
    names = {word.lower() for word in wanted}
    return (gpu for gpu in gpus
            if not names or names & {str(gpu.index), gpu.uuid.lower(), gpu.bus_id.lower()})
