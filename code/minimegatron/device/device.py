"""The interface of a device, which cpu.py, cuda.py, and virtual.py implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from virtualgpu.export import profiler


@dataclass(frozen=True)
class Memory:
    """Memory of one device, in bytes; on the CPU, all four are the process's resident set.

    Attributes:
        allocated: in tensors now.
        max_allocated: peak of `allocated`.
        reserved: held by PyTorch's caching allocator now.
        max_reserved: peak of `reserved`.
    """

    allocated: int
    max_allocated: int
    reserved: int
    max_reserved: int


class Device(ABC):
    """The device that one rank runs on.

    Nothing else in the trainer depends on the device, except for the kernels that PyTorch chooses
    by itself (dispatch.py). A device may have no values in its tensors, so `read` is the only way
    from a tensor to a Python number.

    Attributes:
        kind: kind of device, as error messages name it.
        torch_device: where the rank's tensors are.
        backend: torch.distributed backend of the process groups that carry tensors.
        name: product name; empty if there is none.
        label: what modeled figures are labeled with; empty if figures are measured.
        has_values: whether tensors have values. If not, no training happens.
        shares_clock: whether all ranks' `now` is the same clock.
    """

    kind: str
    torch_device: torch.device
    backend: str
    name = label = ""
    has_values = True
    shares_clock = False

    def read(self, tensor: torch.Tensor) -> float | None:
        """Wait for the device, and return the value of a one-element tensor, or None if it has
        none."""
        return tensor.item()

    def begin_step(self) -> float:
        """Begin a training step. Returns the time on the device's clock, in seconds."""
        return self.now()

    @abstractmethod
    def now(self) -> float:
        """Wait for the device, and return the time on its clock, in seconds."""

    @abstractmethod
    def memory(self) -> Memory:
        """Return how much memory is in use, and its peak."""

    def sheet_peak(self, dtype: str) -> float | None:
        """Return the data sheet's dense matmul peak in TFLOP/s, or None if it is not known.

        Args:
            dtype: "fp32", "tf32", "bf16", "fp16", or "fp8".
        """
        return None

    def status(self) -> dict[str, object]:
        """Return what `lab top` and `nvidia-smi` show of the rank (see logging/status.py).

        Every device reports the bytes that are allocated. GPUs add their local number and the
        memory of the whole GPU; virtual GPUs also add their model, their number on the node, and
        their utilization since the last call.
        """
        memory = self.memory()
        return {"allocated": memory.allocated, "max_allocated": memory.max_allocated}

    def profile(self, folder: str, worker: str) -> profiler.StepProfiler | None:
        """Return the device's own profiler, or None to use PyTorch's (logging/profiler.py)."""
        return None

    def mark(self, name: str) -> AbstractContextManager:
        """Return a context that names a range of the program in a virtual GPU's profile."""
        return nullcontext()

    def connect(self) -> list[str]:
        """Prepare the device's communication, and return lines for the log.

        Every rank must call it before process groups are made for tensors.
        """
        return []

    def closing(self) -> list[str]:
        """Return lines for the log's end."""
        return []
