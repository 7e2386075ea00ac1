"""A virtual GPU: tensors with shapes but no values, and a modeled clock and memory."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

from minimegatron.device import (
    virtual_kernels,  # noqa: F401  registers them
    virtual_network,
)
from minimegatron.device.cpu import Device, Memory
from virtualgpu.core import slots
from virtualgpu.core.card import Card
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export import profiler, trace
from virtualgpu.net import network
from virtualgpu.net.group import BACKEND


class VirtualDevice(Device):
    """A modeled card: tensors with shapes and no values, a clock and a memory of its own.

    It is switched on for the rest of the process: every operation on its tensors counts.
    """

    kind = "a virtual GPU"
    torch_device = torch.device("meta")
    backend = BACKEND
    has_values = False
    shares_clock = True

    def __init__(self, card: Card, link: str | None) -> None:
        """link: between nodes, as network.parse reads it; None: what this card's nodes have.

        Raises VirtualGpuError for a link that is none.
        """
        network.parse(link or card.network)
        self.gpu, self.link = VirtualGpu(card), link or card.network
        self.name = self.label = f"virtual {card.name}"
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.slot = slots.visible(os.environ.get("CUDA_VISIBLE_DEVICES", ""), self.local_rank)
        self.looked = (0.0, 0.0, 0.0)  # last time: seconds on the clock, of those busy; the share
        self.gpu.__enter__()

    def read(self, tensor: torch.Tensor) -> float | None:
        if not self.gpu.holds(tensor):
            return tensor.item()
        self.gpu.read()
        return None

    def now(self) -> float:
        return self.gpu.now()

    def sheet_peak(self, dtype: str) -> float | None:
        return self.gpu.card.tflops.get(dtype)

    def memory(self) -> Memory:
        memory = self.gpu.memory
        return Memory(memory.live, memory.peak, memory.reserved, memory.peak_reserved)

    def profile(self, folder: str, worker: str) -> profiler.Profile:
        cards_here = max(self.local_rank + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        return profiler.Profile(self.gpu, folder, worker, trace.Place(
            dist.get_rank(), dist.get_world_size(), self.local_rank, cards_here))

    def mark(self, name: str) -> AbstractContextManager:
        return trace.marked(self.gpu, name)

    def status(self) -> dict[str, object]:
        memory, now, busy = self.gpu.memory, self.gpu.clock.ready(), sum(self.gpu.busy.values())
        then, before, share = self.looked
        if now > then:
            share = min(1.0, (busy - before) / (now - then))  # streams overlap
        self.looked = now, busy, share
        return {**super().status(), "card": self.gpu.card.name, "gpu": self.local_rank,
                "slot": self.slot, "memory_used": memory.taken + memory.reserved,
                "memory_total": memory.capacity, "virtual_seconds": now, "utilization": share}

    def connect(self) -> list[str]:
        return virtual_network.connect(self.gpu, self.link, self.slot)

    def closing(self) -> list[str]:
        """Raises VirtualGpuError when too much of the time is a guess."""
        line = self.gpu.unknown_costs()
        return [line] if line else []
