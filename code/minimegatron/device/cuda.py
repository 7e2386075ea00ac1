"""An NVIDIA GPU."""

from __future__ import annotations

import time

import torch

from minimegatron.device.device import Device, Memory
from virtualgpu.core import cards


class CudaDevice(Device):
    """A CUDA device: the one with the rank's local number."""

    kind = "a CUDA device"
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

    def sheet_peak(self, dtype: str) -> float | None:
        return cards.sheet_peak(self.name, dtype)

    def status(self) -> dict[str, object]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return {**super().status(), "gpu": self.torch_device.index, "memory_used": total - free,
                "memory_total": total}
