"""The one file that chooses a device; everything else asks the Device it is handed.

Reading a value is an event: `Device.read` is the only way from a tensor to a Python number. It
waits for the device, and on a device without values (meta tensors) it returns None.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import torch

from minimegatron.errors import UserError
from virtualgpu import cards


@dataclass(frozen=True)
class Memory:
    """Bytes in use and at the peak; on the CPU these are the process's resident set."""

    allocated: int
    max_allocated: int
    reserved: int
    max_reserved: int


class Device:
    """The CPU, and the base of the others."""

    torch_device = torch.device("cpu")
    backend = "gloo"
    fused_adam = True
    name = ""  # the accelerator's own

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


class CudaDevice(Device):
    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        self.torch_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)

    def now(self) -> float:
        torch.cuda.synchronize(self.torch_device)
        return time.perf_counter()

    def memory(self) -> Memory:
        on = self.torch_device
        return Memory(torch.cuda.memory_allocated(on), torch.cuda.max_memory_allocated(on),
                      torch.cuda.memory_reserved(on), torch.cuda.max_memory_reserved(on))


class MetaDevice(Device):
    """Tensors with shapes and no values: the shape of every modelled device."""

    torch_device = torch.device("meta")
    fused_adam = False  # torch has no fused Adam for meta tensors

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def read(self, tensor: torch.Tensor) -> float | None:
        return None if tensor.is_meta else tensor.item()


def choose_device(name: str, backend: str | None, local_rank: int) -> tuple[Device, list[str]]:
    """The device for `--device name`, and the lines that tell the user what was decided.

    Raises UserError where the machine has no such device.
    """
    cuda = torch.cuda.is_available()
    if name == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no CUDA device here; nearest: --device cpu")
    if cuda and name in ("auto", "cuda"):
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(f"local rank {local_rank} has no GPU: this node shows {count}; "
                            f"nearest: --nproc_per_node {count}")
        device = CudaDevice(local_rank)
        device.backend = backend or device.backend
        return device, []
    if backend == "nccl":
        return Device(), ["--distributed-backend nccl needs GPUs: on the CPU gloo is used instead"]
    return Device(), []
