"""Choose the device that --device and the job ask for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from minimegatron.arguments import Config
from minimegatron.arguments.device import INSTEAD_OF_CPU, instead_of_cpu
from minimegatron.device.cpu import Device
from minimegatron.errors import UserError
from virtualgpu.core import cards

if TYPE_CHECKING:
    from minimegatron.device.virtual import VirtualDevice


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
        from minimegatron.device.cuda import CudaDevice

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
    from minimegatron.arguments.virtual_device import virtual_card, virtual_link
    from minimegatron.device.virtual import VirtualDevice

    return VirtualDevice(virtual_card(name, config.precision, source), virtual_link(config))
