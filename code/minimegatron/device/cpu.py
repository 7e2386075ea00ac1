"""The CPU as a device, and the interface that CUDA and virtual devices implement.

Reading a value is an event: `Device.read` is the only way from a tensor to a Python number. It
waits for the device, and returns None on a device whose tensors have no values (meta tensors).
"""

from __future__ import annotations

import resource
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from virtualgpu.core import cards

if TYPE_CHECKING:
    from virtualgpu.export import profiler


@dataclass(frozen=True)
class Memory:
    """Bytes in use and at the peak; on the CPU these are the process's resident set."""

    allocated: int
    max_allocated: int
    reserved: int
    max_reserved: int


class Device:
    """The CPU, and the base of the others.

    kind: in words. name: the accelerator's own. label: what a modeled figure is called, empty
    where figures are measured. has_values: whether tensors have any. shares_clock: whether `now` is
    the same clock on all ranks.
    """

    kind = "the CPU"
    torch_device = torch.device("cpu")
    backend = "gloo"
    name = label = ""
    has_values = True
    shares_clock = False

    def read(self, tensor: torch.Tensor) -> float | None:
        """The value of a one-element tensor; None where it has none."""
        return tensor.item()

    def now(self) -> float:
        """Seconds on this device's clock, when all work issued so far is done."""
        return time.perf_counter()

    def sheet_peak(self, dtype: str) -> float | None:
        """TFLOP/s of dense matrix products that the data sheet promises in "fp32", "tf32", "bf16",
        "fp16" or "fp8"; None where the device or its arithmetic in that type is not known."""
        return cards.sheet_peak(self.name, dtype)

    def memory(self) -> Memory:
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * resource.getpagesize()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Memory(resident, max(peak, resident), resident, max(peak, resident))

    def status(self) -> dict[str, object]:
        """What others may see of it now (see status.py): bytes of memory, and for a modeled card
        its name, the process's index for it, its number on the node where Slurm says it, and the
        share of the time since the last look in which a kernel ran."""
        memory = self.memory()
        return {"allocated": memory.allocated, "max_allocated": memory.max_allocated}

    def profile(self, folder: str, worker: str) -> torch.profiler.profile | profiler.Profile:
        """What watches two steps of this rank and writes FOLDER/WORKER.TIME.pt.trace.json."""
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import profile, schedule, tensorboard_trace_handler

        return profile(
            schedule=schedule(wait=1, warmup=1, active=2, repeat=1), profile_memory=True,
            record_shapes=True, with_stack=True, with_modules=True,
            experimental_config=_ExperimentalConfig(verbose=True),  # an operator's call stack
            on_trace_ready=tensorboard_trace_handler(folder, worker_name=worker))

    def mark(self, name: str) -> AbstractContextManager:
        """A range of the program, for the profile of a modeled card."""
        return nullcontext()

    def connect(self) -> list[str]:
        """Before the grid is made; every rank must call it. Returns what to tell the user."""
        return []

    def closing(self) -> list[str]:
        """What to tell the user when the run is over."""
        return []
