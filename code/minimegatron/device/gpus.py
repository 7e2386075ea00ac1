"""GPUs: CUDA devices, and the choice of a real or a virtual one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.device.device import Device, Memory
from minimegatron.device.host_copies import Copy, HostCopies
from minimegatron.errors import UserError
from virtualgpu.core import cards
from virtualgpu.core.slots import INSTEAD_OF_CPU

if TYPE_CHECKING:
    from minimegatron.device.virtual import VirtualDevice


def choose_gpu(config: Config, local_rank: int) -> tuple[Device | None, list[str]]:
    """Return the GPU for --device, or None if that means the CPU, and lines for the log.

    Raises UserError if the machine has no such device for this local rank.
    """
    name = config.device
    if name.startswith("virtual"):
        return virtual_device(config, name.partition(":")[2], local_rank), []
    cuda, notes = torch.cuda.is_available(), []
    if name == "cpu" and instead_of_cpu(cuda):
        name, notes = "cuda", [f"--device cpu: CUDA is used instead, since {INSTEAD_OF_CPU}=cuda"]
    if name == "cuda" and not cuda:
        raise UserError("--device cuda: torch finds no CUDA device here; nearest: --device cpu")
    if cuda and name in ("auto", "cuda"):
        return cuda_device(config, local_rank), notes
    declared = os.environ.get("VIRTUAL_GPU")
    if name == "auto" and declared and (config.distributed_backend == "nccl" or requested_gpus()):
        return virtual_device(config, "", local_rank), []
    return None, []


def instead_of_cpu(cuda: bool) -> bool:
    """Return whether this cluster's jobs use CUDA where their scripts say --device cpu.

    Args:
        cuda: whether torch finds a CUDA device.

    Raises:
        UserError: the cluster names another device, or there is no CUDA device.
    """
    wanted = os.environ.get(INSTEAD_OF_CPU)
    if wanted not in (None, "", "cuda"):
        raise UserError(f"{INSTEAD_OF_CPU}={wanted}: only cuda can stand in for --device cpu; "
                        f"nearest: {INSTEAD_OF_CPU}=cuda")
    if wanted and not cuda:
        raise UserError(f"--device cpu: this cluster's jobs use CUDA instead "
                        f"({INSTEAD_OF_CPU}=cuda), and torch finds no CUDA device here; nearest: "
                        f"ask Slurm for GPUs, or unset {INSTEAD_OF_CPU}")
    return bool(wanted)


def requested_gpus() -> int:
    """Return how many GPUs the Slurm job requested on this node.

    SLURM_GPUS_ON_NODE is set in batch scripts and in srun steps, whichever option requested the
    GPUs. A step may inherit other variables with wrong values.
    """
    return int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)


def require_one_kind(device: Device) -> None:
    """Raise UserError, on all ranks, if --device auto chose different kinds of device."""
    kinds = [""] * dist.get_world_size()
    dist.all_gather_object(kinds, device.kind)
    other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise UserError(f"--device auto means {kinds[0]} on rank 0 and {kinds[other]} on rank "
                        f"{other}, which cannot communicate; nearest: --device cpu")


def cuda_device(config: Config, local_rank: int) -> CudaDevice:
    """Return the CUDA device with a rank's local number.

    Raises UserError if the node has fewer GPUs than ranks, or if gloo cannot connect the stages.
    """
    count, stages = torch.cuda.device_count(), config.pipeline_model_parallel_size
    if local_rank >= count:
        raise UserError(f"local rank {local_rank} has no GPU: this node shows {count}; "
                        f"nearest: --nproc_per_node {count}")
    if config.distributed_backend == "gloo" and stages > 1:
        raise UserError(f"--distributed-backend gloo with --pipeline-model-parallel-size {stages} "
                        "on GPUs: gloo sends and receives only CPU tensors; nearest: "
                        "--distributed-backend nccl")
    device = CudaDevice(local_rank)
    if config.fp8_format is not None:
        require_recipe(config.fp8_recipe, torch.cuda.get_device_capability(local_rank))
    device.backend = config.distributed_backend or device.backend
    return device


def require_recipe(recipe: str, capability: tuple[int, int]) -> None:
    """Raise UserError for an FP8 recipe that a CUDA device of this compute capability lacks."""
    from virtualgpu.core.card import GENERATIONS
    from virtualgpu.core.precisions import RECIPES

    first, needs = RECIPES[recipe]
    least = GENERATIONS[first][:2]
    if capability < least:
        raise UserError(f"--fp8-recipe {recipe} needs {needs}, which came with "
                        f"{first.capitalize()} (compute capability {least[0]}.{least[1]}); this "
                        f"GPU has {capability[0]}.{capability[1]}")


def virtual_device(config: Config, name: str, local_rank: int) -> VirtualDevice:
    """Return a virtual GPU.

    Its model is `name`, or the one that the node declares if `name` is empty. Raises UserError if
    there is no such model, or if the job requested fewer GPUs than it has ranks.
    """
    from minimegatron.arguments.virtual_device import virtual_card, virtual_link
    from minimegatron.device.virtual import VirtualDevice
    from virtualgpu.core import cards

    count = requested_gpus()
    if not name and 0 < count <= local_rank:
        raise UserError(f"local rank {local_rank} has no GPU: this job has {count} on this node; "
                        f"nearest: --nproc_per_node {count}")
    source = "" if name else f"VIRTUAL_GPU={os.environ.get('VIRTUAL_GPU')}"
    name = name or os.environ.get("VIRTUAL_GPU", "")
    if not name:
        raise UserError("--device virtual: this node declares no virtual GPU; nearest: --device "
                        f"virtual:{next(iter(cards.CARDS))}, and `lab devices` lists the others")
    return VirtualDevice(virtual_card(config, name, source), virtual_link(config))


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

    def host_copies(self) -> CudaHostCopies:
        return CudaHostCopies()

    def status(self) -> dict[str, object]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return {**super().status(), "gpu": self.torch_device.index, "memory_used": total - free,
                "memory_total": total}


class CudaHostCopies(HostCopies):
    """Copies between a CUDA device and pinned host memory.

    Each copy waits for the kernels so far, and whoever uses its result or frees its source waits
    for its event. So memory on the device needs no `record_stream`: when it is freed, the compute
    stream has waited for the copy, and all kernels that may get the memory come later on that
    stream.
    Pinned memory that is freed during a copy is not reused before the copy ends, because PyTorch
    records an event for it (ATen/cuda/CachingHostAllocator.h).
    """

    def __init__(self) -> None:
        self.down, self.up = torch.cuda.Stream(), torch.cuda.Stream()

    def zeros(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, pin_memory=True)

    def download(self, tensor: torch.Tensor) -> Copy:
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        return Copy(host, self._copy(self.down, host, tensor))

    def upload(self, tensor: torch.Tensor) -> Copy:
        on_device = torch.empty_like(tensor, device=torch.cuda.current_device())
        self.up.wait_stream(self.down)  # which may not have filled the tensor yet
        return Copy(on_device, self._copy(self.up, on_device, tensor))

    def overwrite(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        pinned = torch.empty(source.shape, dtype=target.dtype, pin_memory=True)
        return self._copy(self.up, target, pinned.copy_(source))

    def wait(self, arrives: torch.cuda.Event) -> None:
        torch.cuda.current_stream().wait_event(arrives)

    def host_waits(self, arrives: torch.cuda.Event) -> None:
        arrives.synchronize()

    @staticmethod
    def _copy(stream: torch.cuda.Stream, target: torch.Tensor, source: torch.Tensor
              ) -> torch.cuda.Event:
        """Start a copy after all kernels so far; return an event that is recorded after it."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if source.is_cuda and source.stride() != target.stride():
                source = source.clone()  # else PyTorch copies through pageable memory, and waits
            target.copy_(source, non_blocking=True)
        return stream.record_event()
