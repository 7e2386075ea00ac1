"""--query-gpu and --query-compute-apps: fields, and their values as CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from job_monitor.nvidia_smi.cards import Gpu
from virtualgpu.core.cards import nearest

NOT_MODELED = "[N/A]"


@dataclass(frozen=True)
class Field:
    """One column. value: of a card; None: not modeled. unit: in the header and after values."""

    name: str
    about: str
    value: Callable[[Gpu], object] | None = None
    unit: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def text(self, gpu: Gpu, units: bool) -> str:
        if self.value is None:
            return NOT_MODELED
        return f"{self.value(gpu)} {self.unit}" if units and self.unit else str(self.value(gpu))


def stamp(_: Gpu) -> str:
    now = datetime.now()
    return f"{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03d}"


SHARED = (
    Field("timestamp", "when it was asked: YYYY/MM/DD HH:MM:SS.msec", stamp),
    Field("node", "the node's name; the real nvidia-smi has no such field", lambda gpu: gpu.node),
)
GPU_FIELDS = (
    *SHARED,
    Field("driver_version", "there is no driver: virtual", lambda gpu: "virtual"),
    Field("name", "the product that is modeled", lambda gpu: gpu.product),
    Field("index", "from 0, on each node; inside a job from 0 among its cards",
          lambda gpu: gpu.index),
    Field("uuid", "made up, the same every time", lambda gpu: gpu.uuid),
    Field("pci.bus_id", "made up, the same as in NCCL's lines", lambda gpu: gpu.bus_id),
    Field("utilization.gpu", "share of the virtual time since the last look in which a kernel ran",
          lambda gpu: gpu.percent, "%"),
    Field("memory.total", "the card's", lambda gpu: gpu.total, "MiB"),
    Field("memory.used", "reserved by PyTorch, CUDA's context, NCCL's buffers",
          lambda gpu: gpu.used, "MiB"),
    Field("memory.free", "the rest", lambda gpu: max(0, gpu.total - gpu.used), "MiB"),
    Field("compute_mode", "any number of processes may use it", lambda gpu: "Default"),
    *(Field(name, "not modeled", None, unit) for name, unit in (
        ("utilization.memory", "%"), ("temperature.gpu", ""), ("temperature.memory", ""),
        ("power.draw", "W"), ("power.limit", "W"), ("fan.speed", "%"), ("pstate", ""),
        ("clocks.current.graphics", "MHz"), ("clocks.current.sm", "MHz"),
        ("clocks.current.memory", "MHz"), ("pcie.link.gen.current", ""),
        ("pcie.link.width.current", ""), ("ecc.errors.uncorrected.volatile.total", ""),
        ("serial", ""), ("vbios_version", ""), ("persistence_mode", ""), ("mig.mode.current", ""))),
)
APP_FIELDS = (
    *SHARED,
    Field("pid", "of the process, as its job knows it", lambda gpu: gpu.rank.pid),
    Field("process_name", "always python", lambda gpu: "python"),
    Field("used_gpu_memory", "by the process", lambda gpu: gpu.used, "MiB"),
    Field("gpu_name", "the product that is modeled", lambda gpu: gpu.product),
    Field("gpu_uuid", "made up, the same every time", lambda gpu: gpu.uuid),
    Field("gpu_bus_id", "made up, the same every time", lambda gpu: gpu.bus_id),
)
ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id",
           "clocks.gr": "clocks.current.graphics", "clocks.sm": "clocks.current.sm",
           "clocks.mem": "clocks.current.memory"}
APP_ALIASES = {"used_memory": "used_gpu_memory", "name": "process_name"}


class BadField(Exception):
    """No such field; the text names the nearest."""


def fields(text: str, known: tuple[Field, ...], aliases: dict[str, str]) -> list[Field]:
    """Return the fields of a comma-separated list. Raises BadField."""
    by_name = {field.name: field for field in known}
    found = []
    for word in (word.strip() for word in text.split(",")):
        field = by_name.get(aliases.get(word, word))
        if field is None:
            near = " or ".join(nearest(word, [*by_name, *aliases])) if word else next(iter(by_name))
            raise BadField(f'Field "{word}" is not a valid field to query; nearest: {near}')
        found.append(field)
    return found


def header(columns: list[Field]) -> str:
    return ", ".join(field.title for field in columns)


def rows(columns: list[Field], gpus: list[Gpu], units: bool) -> list[str]:
    return [", ".join(field.text(gpu, units) for field in columns) for gpu in gpus]


def help_text(flag: str, known: tuple[Field, ...], aliases: dict[str, str]) -> str:
    lines = [f"Fields of --{flag}, separated by commas:", ""]
    for field in known:
        others = [alias for alias, name in aliases.items() if name == field.name]
        names = " or ".join(f'"{name}"' for name in (field.name, *others))
        lines += [names, f"  {field.about}."]
    return "\n".join(lines)
