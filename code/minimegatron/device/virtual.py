"""A virtual GPU: tensors with shapes but no values, and a modeled clock, memory, and network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from minimegatron.device import virtual_kernels  # noqa: F401  registers them
from minimegatron.device.device import Device, Memory
from minimegatron.device.host_copies import Copy, HostCopies, HostTraffic
from minimegatron.errors import emit
from virtualgpu.core import slots, stacks
from virtualgpu.core.card import Card
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.memory import amount
from virtualgpu.core.workspaces import Workspaces
from virtualgpu.export import profiler, trace
from virtualgpu.net import network
from virtualgpu.net.backend import register
from virtualgpu.net.communicator import BACKEND
from virtualgpu.net.nodes import adam_seconds
from virtualgpu.net.topology import Topology

FROM_GPU, TO_GPU = "copies to the host", "copies from the host"  # streams


class VirtualDevice(Device):
    """A virtual GPU, active for the rest of the process: every operation on its tensors advances
    its clock and uses its memory."""

    kind = "a virtual GPU"
    torch_device = torch.device("meta")
    backend = BACKEND
    has_values = False
    shares_clock = True

    def __init__(self, card: Card, link: str | None) -> None:
        """Create the virtual GPU and activate it.

        Args:
            card: its model.
            link: network between nodes, as network.parse reads it; None for the model's usual one.

        Raises:
            VirtualGpuError: `link` is not a network.
        """
        network.parse(link or card.network)
        self.gpu, self.link = VirtualGpu(card), link or card.network
        # PyTorch 1.10, the version of the older GPUs' time, leaves the workspaces to cuBLAS.
        if card.architecture in ("hopper", "blackwell"):
            self.gpu.workspaces = Workspaces(card)
        self.name = self.label = f"virtual {card.name}"
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.slot = slots.visible(os.environ.get("CUDA_VISIBLE_DEVICES", ""), self.local_rank)
        self.last_status = (0.0, 0.0, 0.0)  # virtual seconds, busy seconds, utilization
        self.gpu.__enter__()

    def read(self, tensor: torch.Tensor) -> float | None:
        if not self.gpu.holds(tensor):
            return tensor.item()
        self.gpu.read_value()
        return None

    def begin_step(self) -> float:
        begin = self.now()
        self.gpu.clock.work(self.gpu.card.efficiency.step)
        return begin

    def now(self) -> float:
        return self.gpu.now()

    def sheet_peak(self, dtype: str) -> float | None:
        return self.gpu.card.tflops.get(dtype)

    def memory(self) -> Memory:
        memory = self.gpu.memory
        return Memory(memory.live, memory.peak, memory.reserved, memory.peak_reserved)

    def resize(self, buffer: torch.Tensor, elements: int) -> None:
        self.gpu.resize(buffer.untyped_storage()._cdata, elements * buffer.element_size())
        super().resize(buffer, elements)

    def host_copies(self) -> PcieCopies:
        return PcieCopies(self.gpu)

    @contextmanager
    def outside(self) -> Iterator[torch.device]:
        with _disable_current_modes():  # which count memory
            yield self.torch_device

    def profile(self, folder: str, worker: str) -> profiler.StepProfiler:
        cards_here = max(self.local_rank + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        return profiler.StepProfiler(self.gpu, folder, worker, trace.RankPlacement(
            dist.get_rank(), dist.get_world_size(), self.local_rank, cards_here))

    def mark(self, name: str) -> AbstractContextManager:
        return trace.marked(self.gpu, name)

    def status(self) -> dict[str, object]:
        memory, now, busy = self.gpu.memory, self.gpu.clock.ready(), sum(self.gpu.busy.values())
        last_now, last_busy, utilization = self.last_status
        if now > last_now:  # streams overlap, so the busy time can be longer than the step
            utilization = min(1.0, (busy - last_busy) / (now - last_now))
        self.last_status = now, busy, utilization
        return {**super().status(), "card": self.gpu.card.name, "gpu": self.local_rank,
                "slot": self.slot, "memory_used": memory.non_pytorch + memory.reserved,
                "memory_total": memory.capacity, "virtual_seconds": now, "utilization": utilization}

    def connect(self) -> list[str]:
        return connect(self.gpu, self.link, self.slot)

    def closing(self) -> list[str]:
        """Raise VirtualGpuError if too much of the time was spent in operations without a cost
        rule; list them if there were any."""
        line = self.gpu.unknown_costs()
        return [line] if line else []


class PcieCopies(HostCopies):
    """Copies between a virtual GPU and pinned host memory; both directions are equally fast."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu
        self.downloaded: list[float] = []  # when each piece of optimizer state has arrived

    def start_update(self, traffic: HostTraffic) -> None:
        self._after_kernels(FROM_GPU)
        self.downloaded = [self._copy(FROM_GPU, elements * traffic.down)
                           for elements in traffic.pieces]

    def update(self, traffic: HostTraffic) -> None:
        clock = self.gpu.clock
        for elements, arrived in zip(traffic.pieces, self.downloaded, strict=True):
            clock.host_waits(arrived)
            clock.work(adam_seconds(self.gpu.card, elements))
            self._copy(TO_GPU, elements * traffic.up)
        clock.wait(clock.streams[TO_GPU])

    def download(self, tensor: torch.Tensor) -> Copy:
        with _disable_current_modes():  # host memory is not modeled
            host = torch.empty_like(tensor)
        self._after_kernels(FROM_GPU)
        return Copy(host, self._copy(FROM_GPU, tensor.nbytes))

    def upload(self, tensor: torch.Tensor) -> Copy:
        on_gpu = torch.empty_like(tensor)
        self._after_kernels(TO_GPU)  # which may still use the memory that it has
        return Copy(on_gpu, self._copy(TO_GPU, tensor.nbytes))

    def wait(self, arrives: float) -> None:
        self.gpu.clock.wait(arrives)

    def _after_kernels(self, stream: str) -> None:
        self.gpu.clock.wait(self.gpu.clock.ready(), stream)

    def _copy(self, stream: str, size: int) -> float:
        """Launch a copy of `size` bytes; return when it ends."""
        current, self.gpu.stream = self.gpu.stream, stream
        self.gpu.download(size)
        self.gpu.stream = current
        return self.gpu.clock.streams[stream]


def connect(gpu: VirtualGpu, link: str, slot: int | None) -> list[str]:
    """Exchange GPU models, nodes, and links, and register the backend that models their links.

    Every rank must call it, with the network of its node and, if Slurm assigned one, the number of
    its GPU there. Returns lines that describe the GPUs and the links.
    """
    places: list[tuple] = [()] * dist.get_world_size()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    dist.all_gather_object(places, (node, gpu.card.name, gpu.card.stack, link, slot))
    nodes, names, software, links, slots = zip(*places, strict=True)
    # Between nodes with different networks, communication is as fast as the slower one.
    slowest = min(map(network.parse, dict.fromkeys(links)), key=lambda one: one.effective)
    models = tuple(map(stacks.card_under, names, software))
    topology = Topology(nodes, models, slowest, slots)
    register(gpu, topology, emit if nccl_debug() else None)
    return [f"{title(card)} on rank(s) {ranks_of(card, models)}"
            for card in dict.fromkeys(models)
            ] + [f"software stack {text}" for text in dict.fromkeys(map(stacks.describe, models))
            ] + [f"virtual links: {topology.describe()}; times and memory are modeled; "
                 "no training happens: tensors have shapes but no values"]


def nccl_debug() -> bool:
    """Return whether NCCL_DEBUG asks for NCCL's lines about its communicators."""
    return os.environ.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")


def title(card: Card) -> str:
    """Return the line that introduces a GPU model in the log."""
    return (f"using virtual {card.name} ({card.product}, {amount(card.memory)}, "
            f"{card.bandwidth / 1e9:g} GB/s)")


def ranks_of(card: Card, models: tuple[Card, ...]) -> str:
    """Return the ranks with this GPU model, separated by commas, from the model of each rank."""
    return ",".join(str(rank) for rank, other in enumerate(models) if other is card)
