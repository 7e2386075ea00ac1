"""The CPU as a device."""

from __future__ import annotations

import resource
import time

import torch

from minimegatron.device.device import Device, Memory


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
