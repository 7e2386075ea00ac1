"""The interface of a device, the CPU, and the choice of kernels by device."""

from __future__ import annotations

import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from minimegatron.device.host_copies import HostCopies
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
    by itself (`operation`). A device may have no values in its tensors, so `read` is the only way
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
        """Return what `lab top` and `nvidia-smi` show of the rank (see report/status.py).

        Every device reports the bytes that are allocated. GPUs add their local number and the
        memory of the whole GPU; virtual GPUs also add their model, their number on the node, and
        their utilization since the last call.
        """
        memory = self.memory()
        return {"allocated": memory.allocated, "max_allocated": memory.max_allocated}

    def resize(self, buffer: torch.Tensor, elements: int) -> None:
        """Free a buffer's memory (0 elements), or allocate it again; its views stay views of it."""
        buffer.untyped_storage().resize_(elements * buffer.element_size())

    def host_copies(self) -> HostCopies:
        """Return the object that copies between device and host memory, for offloading."""
        from minimegatron.device.host_copies import HostCopies

        return HostCopies()

    def outside(self) -> AbstractContextManager[torch.device]:
        """Return a context for making parameters that will be sharded, which never are all in the
        device's memory: its value is where to make them."""
        return nullcontext(torch.device("cpu"))

    def profile(self, folder: str, worker: str) -> profiler.StepProfiler | None:
        """Return the device's own profiler, or None to use PyTorch's (report/timeline.py)."""
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


class CpuDevice(Device):
    """The CPU. Memory is the process's resident set, since PyTorch does not count it there."""

    kind = "the CPU"
    torch_device = torch.device("cpu")
    backend = "gloo"

    def now(self) -> float:
        return time.perf_counter()

    def memory(self) -> Memory:
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * resource.getpagesize()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Memory(resident, max(peak, resident), resident, max(peak, resident))


LIBRARY = torch.library.Library("minimegatron", "DEF")
Function = TypeVar("Function", bound=Callable[..., Any])


def operation(*mutates: str) -> Callable[[Function], Function]:
    """Return a decorator that defines an operation by its kernel in plain torch.

    The schema follows from the function's annotations. Arguments are tensors (or None), integers,
    and floats, and at least one is a tensor. The operation returns a tensor or nothing.

    Args:
        mutates: names of the tensors that it changes in place.
    """
    def define(function: Function) -> Function:
        name = function.__name__
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        LIBRARY.impl(name, function, "CompositeImplicitAutograd")
        # The overload itself: looking it up by its arguments at every call would cost more.
        defined = getattr(torch.ops.minimegatron, name).default
        defined.__doc__ = function.__doc__
        return defined
    return define
