"""FSDP1 writes `torch.device(LOCAL_RANK)`, which torch's CPU build refuses to understand."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import _init_utils

real_device = torch.device


class _Kind(type):
    """isinstance(x, torch.device) stays what it is."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, real_device)


class Device(metaclass=_Kind):
    """torch.device, for which a number is a GPU."""

    def __new__(cls, *args, **kwargs) -> real_device:
        if len(args) == 1 and type(args[0]) is int:
            return real_device("cuda", args[0])
        return real_device(*args, **kwargs)


class Torch:
    """torch, with that device."""

    device = Device

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def install() -> None:
    """Let FSDP1 find its device."""
    _init_utils.torch = Torch()
