"""Choose the device that --device and the job ask for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from minimegatron.arguments import Config
from minimegatron.device.cpu import CpuDevice
from virtualgpu.core.slots import INSTEAD_OF_CPU

if TYPE_CHECKING:
    from minimegatron.device.device import Device


def choose_device(config: Config, local_rank: int) -> tuple[Device, list[str]]:
    """Return the device for --device, and lines for the log that explain the choice.

    Raises UserError if the machine has no such device for this local rank.
    """
    if config.device != "cpu" or os.environ.get(INSTEAD_OF_CPU):
        from minimegatron.device.gpus import choose_gpu

        gpu, notes = choose_gpu(config, local_rank)
        if gpu is not None:
            return gpu, notes
    if config.distributed_backend == "nccl":
        return CpuDevice(), ["--distributed-backend nccl needs GPUs: on the CPU gloo is used "
                             "instead"]
    return CpuDevice(), []
