"""Support FSDP1's `torch.device(LOCAL_RANK)`, which torch's CPU build rejects."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import _init_utils

real_device = torch.device


class _Kind(type):
    """Keeps isinstance(x, torch.device) working."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, real_device)


class IndexedDevice(metaclass=_Kind):
    """torch.device, for which an integer is a GPU."""

    def __new__(cls, *args, **kwargs) -> real_device:
        if len(args) == 1 and type(args[0]) is int:
            return real_device("cuda", args[0])
        return real_device(*args, **kwargs)


class Torch:
    """The torch module with that device."""

    device = IndexedDevice

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def install() -> None:
    """Install the replacement in FSDP1."""
    _init_utils.torch = Torch()
