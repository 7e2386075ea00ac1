"""Define the fields of --query-gpu and --query-compute-apps, and format their values as CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from virtualgpu.core.card import generation
from virtualgpu.core.cards import nearest
from virtualgpu.smi import unmodeled
from virtualgpu.smi.gpus import Gpu

NOT_MODELED = "[N/A]"


@dataclass(frozen=True)
class QueryField:
    """One column.

    Attributes:
        name: its name on the command line and in the header.
        description: what the help prints about it.
        value: returns its value for a GPU; None if the field is not modeled.
        unit: the unit, in the header and after values.
    """

    name: str
    description: str
    value: Callable[[Gpu], object] | None = None
    unit: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def text(self, gpu: Gpu, units: bool) -> str:
        if self.value is None:
            return NOT_MODELED
        return f"{self.value(gpu)} {self.unit}" if units and self.unit else str(self.value(gpu))


def timestamp(_: Gpu) -> str:
    now = datetime.now()
    return f"{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03d}"


SHARED = (
    QueryField("timestamp", "the time of the query: YYYY/MM/DD HH:MM:SS.msec", timestamp),
    QueryField("node", "the node's name; the real nvidia-smi has no such field",
               lambda gpu: gpu.node),
)
GPU_FIELDS = (
    *SHARED,
    QueryField("driver_version", 'always "virtual", because there is no driver',
               lambda gpu: "virtual"),
    QueryField("name", "the modeled product", lambda gpu: gpu.product),
    QueryField("index", "the GPU's number on its node, from 0; inside a job, among the job's GPUs",
               lambda gpu: gpu.index),
    QueryField("uuid", "an invented, stable UUID", lambda gpu: gpu.uuid),
    QueryField("pci.bus_id", "an invented, stable bus ID, the same as in NCCL's lines",
               lambda gpu: gpu.bus_id),
    QueryField("utilization.gpu",
               "percentage of the modeled time since the last update in which a kernel ran",
               lambda gpu: gpu.percent, "%"),
    QueryField("memory.total", "the GPU's memory", lambda gpu: gpu.total, "MiB"),
    QueryField("memory.used", "PyTorch's reserved memory, CUDA's context, and NCCL's buffers",
               lambda gpu: gpu.used, "MiB"),
    QueryField("memory.free", "memory that is not used",
               lambda gpu: max(0, gpu.total - gpu.used), "MiB"),
    QueryField("compute_mode", 'always "Default": any number of processes may use the GPU',
               lambda gpu: "Default"),
    QueryField("count", "the number of GPUs on the node; inside a job, of the job's",
               lambda gpu: gpu.count),
    QueryField("compute_cap", "compute capability", lambda gpu: ".".join(
        str(number) for number in generation(gpu.card)[:2])),
    QueryField("pci.domain", "the bus ID's first part", lambda gpu: f"0x{gpu.bus_id[4:8]}"),
    QueryField("pci.bus", "the bus ID's second part", lambda gpu: f"0x{gpu.bus_id[9:11]}"),
    QueryField("pci.device", "the bus ID's third part", lambda gpu: f"0x{gpu.bus_id[12:14]}"),
    *(QueryField(name, "not modeled", None, unit) for name, unit in unmodeled.FIELDS),
)
APP_FIELDS = (
    *SHARED,
    QueryField("pid", "the process ID; on a cluster, in its PID namespace",
               lambda gpu: gpu.process.pid),
    QueryField("process_name", 'always "python"', lambda gpu: "python"),
    QueryField("used_gpu_memory", "memory used by the process", lambda gpu: gpu.used, "MiB"),
    QueryField("gpu_name", "the modeled product", lambda gpu: gpu.product),
    QueryField("gpu_uuid", "an invented, stable UUID", lambda gpu: gpu.uuid),
    QueryField("gpu_bus_id", "an invented, stable bus ID", lambda gpu: gpu.bus_id),
    QueryField("gpu_serial", "not modeled"),
)
ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id",
           **unmodeled.ALIASES}
APP_ALIASES = {"used_memory": "used_gpu_memory", "name": "process_name"}


class UnknownField(Exception):
    """Raised for an unknown field, with the nearest ones."""


def fields(text: str, known: tuple[QueryField, ...], aliases: dict[str, str]) -> list[QueryField]:
    """Return the fields of a comma-separated list.

    Args:
        text: the list.
        known: the fields of this kind of query.
        aliases: other names of these fields.

    Raises:
        UnknownField: there is no such field.
    """
    by_name = {field.name: field for field in known}
    selected = []
    for word in (word.strip() for word in text.split(",")):
        field = by_name.get(aliases.get(word, word))
        if field is None:
            near = " or ".join(nearest(word, [*by_name, *aliases])) if word else next(iter(by_name))
            raise UnknownField(f'Field "{word}" is not a valid field to query; nearest: {near}')
        selected.append(field)
    return selected


def header(columns: list[QueryField]) -> str:
    return ", ".join(field.title for field in columns)


def rows(columns: list[QueryField], gpus: list[Gpu], units: bool) -> list[str]:
    return [", ".join(field.text(gpu, units) for field in columns) for gpu in gpus]


def help_text(flag: str, known: tuple[QueryField, ...], aliases: dict[str, str]) -> str:
    lines = [f"--{flag} takes these fields, separated by commas:", ""]
    for field in known:
        others = [alias for alias, name in aliases.items() if name == field.name]
        names = " or ".join(f'"{name}"' for name in (field.name, *others))
        lines += [names, f"  {field.description}."]
    return "\n".join(lines)
