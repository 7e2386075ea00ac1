"""The one file that chooses a device; everything else asks the Device it is handed.

Reading a value is an event: `Device.read` is the only way from a tensor to a Python number. It
waits for the device, and on a device without values (meta tensors) it returns None.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from minimegatron import neighbors
from minimegatron.arguments import Config
from minimegatron.arguments.device import INSTEAD_OF_CPU, instead_of_cpu, virtual_card, virtual_link
from minimegatron.errors import UserError
from virtualgpu.core import cards, slots
from virtualgpu.core import kernels as modeled  # noqa: F401 (for ops.py)
from virtualgpu.core.card import Card
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export import profiler, trace
from virtualgpu.net import collectives, network
from virtualgpu.net.group import BACKEND, VirtualGroup
from virtualgpu.net.nccl import buffer_bytes
from virtualgpu.net.topology import Topology


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
    fused_adam = True
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


class CudaDevice(Device):
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

    def status(self) -> dict[str, object]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return {**super().status(), "gpu": self.torch_device.index, "memory_used": total - free,
                "memory_total": total}


class VirtualDevice(Device):
    """A modeled card: tensors with shapes and no values, a clock and a memory of its own.

    It is switched on for the rest of the process: every operation on its tensors counts.
    """

    kind = "a virtual GPU"
    torch_device = torch.device("meta")
    backend = BACKEND
    fused_adam = False  # torch has none for meta tensors; ops.adamw has
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
        if not tensor.is_meta:
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
        return neighbors.connect(self.gpu, self.link, self.slot)

    def imagine(self, world_size: int, per_node: int) -> Topology:
        """Sit in a cluster of such cards that is not there, `per_node` of them on a node."""
        nodes = tuple(str(rank // per_node) for rank in range(world_size))
        self.topology = Topology(nodes, (self.gpu.card,) * world_size, network.parse(self.link))
        return self.topology

    def stand_in(self, ranks: Sequence[int], index: int) -> VirtualGroup:
        """A group of the imagined cluster, whose other ranks are as far as this one."""
        return VirtualGroup(self.gpu, self.topology, list(ranks), index)

    def buffer_bytes(self, ranks: Sequence[int]) -> int:
        """What a group of the imagined cluster takes of the memory once it is used."""
        return buffer_bytes(self.gpu.card, self.topology.path(ranks)) if len(ranks) > 1 else 0

    def gather_seconds(self, ranks: Sequence[int], size: int) -> float:
        """Of an all-gather of `size` bytes in all."""
        return collectives.all_gather(self.topology.path(ranks), size)

    def message_seconds(self, source: int, target: int, size: int) -> float:
        """Of `size` bytes between two ranks of the imagined cluster."""
        return collectives.message(self.topology.wire(source, target), size)

    def closing(self) -> list[str]:
        """Raises VirtualGpuError when too much of the time is a guess."""
        line = self.gpu.unknown_costs()
        return [line] if line else []


def choose_device(config: Config, local_rank: int) -> tuple[Device, list[str]]:
    """The device for --device, and the lines that tell the user what was decided. Raises UserError
    where the machine has no such device."""
    name, backend = config.device, config.distributed_backend
    if name.startswith("virtual"):
        return virtual_device(config, name.partition(":")[2], local_rank), []
    cuda, notes = torch.cuda.is_available(), []
    if name == "cpu" and instead_of_cpu(cuda):
        name, notes = "cuda", [f"--device cpu: CUDA is used instead, since {INSTEAD_OF_CPU}=cuda"]
    if name == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no CUDA device here; nearest: --device cpu")
    if cuda and name in ("auto", "cuda"):
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(f"local rank {local_rank} has no GPU: this node shows {count}; "
                            f"nearest: --nproc_per_node {count}")
        if backend == "gloo" and config.pipeline_model_parallel_size > 1:
            raise UserError("--distributed-backend gloo with --pipeline-model-parallel-size "
                            f"{config.pipeline_model_parallel_size} on GPUs: gloo sends and "
                            "receives only CPU tensors; nearest: --distributed-backend nccl")
        device = CudaDevice(local_rank)
        device.backend = backend or device.backend
        return device, notes
    declared = os.environ.get("VIRTUAL_GPU")
    if name == "auto" and declared and (backend == "nccl" or gpus_asked()):
        return virtual_device(config, "", local_rank), []
    if backend == "nccl":
        return Device(), ["--distributed-backend nccl needs GPUs: on the CPU gloo is used instead"]
    return Device(), []


def gpus_asked() -> int:
    """How many GPUs this Slurm job asked for on this node. Of Slurm's variables this one alone
    says so in batch and srun steps, however they were asked for; a step may inherit the others."""
    return int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)


def virtual_device(config: Config, name: str, local_rank: int) -> VirtualDevice:
    """name: of a card; empty: the one that the node declares. Raises UserError."""
    count = gpus_asked()
    if not name and 0 < count <= local_rank:
        raise UserError(f"local rank {local_rank} has no GPU: this job has {count} on this node; "
                        f"nearest: --nproc_per_node {count}")
    source = "" if name else f"VIRTUAL_GPU={os.environ.get('VIRTUAL_GPU')}"
    name = name or os.environ.get("VIRTUAL_GPU", "")
    if not name:
        raise UserError("--device virtual: this node declares no virtual card; nearest: --device "
                        f"virtual:{next(iter(cards.CARDS))}, and `lab devices` lists the others")
    return VirtualDevice(virtual_card(name, config.precision, source), virtual_link(config))
