"""FullyShardedDataParallel takes `device_id=LOCAL_RANK`, which torch's CPU build cannot read."""

from __future__ import annotations

import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from virtualgpu.pytorch.mode import CudaGpu


def install(gpu: CudaGpu) -> None:
    """Give FSDP1 a device where a program gives it a number."""
    original = FullyShardedDataParallel.__init__

    @functools.wraps(original)
    def init(self, *args, **options) -> None:
        if type(options.get("device_id")) is int:
            options["device_id"] = torch.device("cuda", options["device_id"])
        original(self, *args, **options)

    FullyShardedDataParallel.__init__ = init
