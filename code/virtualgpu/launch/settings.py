"""Settings of a run, except the GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.packages import finder
from virtualgpu.pytorch.assumptions import AssumedValue
from virtualgpu.pytorch.values import LIMIT

UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6,
         "gb": 10**9}
ALL = 2**62


@dataclass(frozen=True)
class Settings:
    """Options of a run.

    Attributes:
        values: bytes of the largest tensor whose values are computed.
        answers: values that the user supplies with --assume.
        record: whether every rank returns a record (virtualgpu.replay).
        trace: the folder for traces; None for no traces.
        fuse: whether elementwise kernels of compiled regions are fused; None: unless the run is
            recorded.
        smi: the folder that `nvidia-smi` reads; None without that command.
        steps: the program ends after this number of steps; None: it runs to its own end.
        output_tokens: the output token of inference that is the end-of-text token; None: none is.
        eager_host: whether eager operations in inference cost the host more than launches
            (core/eager.py); records never have these costs.
        typical: what a few numbers of large tensors are assumed to be; None: they are unknown.
        without: names of finder.REMOVABLE to leave out: stand-ins, or cuDNN's attention kernel.

    Raises:
        VirtualGpuError: two settings exclude each other, or `without` has an unknown name.
    """

    values: int = LIMIT
    answers: tuple[AssumedValue, ...] = ()
    record: bool = False
    trace: str | None = None
    fuse: bool | None = None
    typical: float | None = None
    steps: int | None = None
    without: tuple[str, ...] = ()
    output_tokens: int | None = None
    eager_host: bool = False
    smi: Path | None = None

    def __post_init__(self) -> None:
        finder.check(self.without)
        if self.record and self.fuse:
            raise VirtualGpuError("a run with fused kernels (fuse) cannot be recorded (record): "
                                  "records hold the operations of eager mode; drop one of them")

    @property
    def fuses(self) -> bool:
        """Whether compiled regions are fused."""
        return not self.record if self.fuse is None else self.fuse


def parse_size(text: str) -> int:
    """Parse a size in bytes, such as 1MiB, all, or none. Raises VirtualGpuError."""
    word = text.strip().lower()
    if word in ("all", "none"):
        return ALL if word == "all" else 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", word)
    if not match or match[2] not in UNITS:
        raise VirtualGpuError(f"--values {text}: expected a size such as 1MiB, or all, or none")
    return int(float(match[1]) * UNITS[match[2]])
