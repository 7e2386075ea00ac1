"""Functions that create tensors, on the virtual GPU or on the program's own meta device."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch.utils import _device
from torch.utils._python_dispatch import _disable_current_modes

from virtualgpu.pytorch import pinned
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.unknown import Unknown
from virtualgpu.pytorch.visible import META, asked_for_meta, hidden


def install(gpu: CudaGpu) -> None:
    """Distinguish the two kinds of meta tensors, and send data to the GPU through the mode."""
    torch._C._set_only_lift_cpu_tensors(True)
    _own_meta_by_context()
    for function in _device._device_constructors():
        name = function.__name__
        if getattr(torch, name, None) is function:
            setattr(torch, name, _by_argument(gpu, function))
    Unknown.tensor = functools.partial(_unknown, gpu)
    torch.tensor = _of_unknown(torch.tensor)
    generator = torch.Generator

    class Generator(generator):
        """torch.Generator, whose GPU generators are CPU generators."""

        def __new__(cls, device: object = None):
            return generator.__new__(cls, "cpu")

    torch.Generator = Generator
    grouped = torch._C._group_tensors_by_device_and_dtype

    def group(lists, with_indices=False):
        """Group tensors by the device that the program sees, as optimizers request it."""
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[list], list[int]]] = {}
        for (device, dtype), (columns, indices) in grouped(lists, with_indices).items():
            group = groups.setdefault((_device_of(columns, device), dtype),
                                      ([[] for _ in columns], []))
            for column, more in zip(group[0], columns, strict=True):
                column += more
            group[1].extend(indices)
        return groups

    def _device_of(lists, device: torch.device) -> torch.device:
        if device.type != "meta":
            return device
        return next((item.device for some in lists for item in some
                     if item is not None and item.device.type != "cpu"), torch.device("cpu"))

    torch._C._group_tensors_by_device_and_dtype = group


def _own_meta_by_context() -> None:
    """Support `with torch.device("meta"):`."""
    original = _device.DeviceContext.__torch_function__

    def function(self, func, types, args=(), kwargs=None):
        if self.device.type != "meta":
            return original(self, func, types, args, kwargs)
        with asked_for_meta:
            return original(self, func, types, args, kwargs)

    _device.DeviceContext.__torch_function__ = function


def _by_argument(gpu: CudaGpu, function):
    """Support `torch.empty(3, device="meta")` and `torch.empty(3, pin_memory=True)`."""
    def make(*args, **kwargs):
        if kwargs.get("pin_memory"):  # which C++ refuses without CUDA
            return pinned.marked(gpu, function(*args, **{**kwargs, "pin_memory": False}))
        device = kwargs.get("device")
        if type(device) is int:
            kwargs["device"] = device = torch.device("cuda", device)
        if device is None or torch.device(device).type != "meta":
            return function(*args, **kwargs)
        with asked_for_meta:
            return function(*args, **kwargs)

    make.__name__, make.__doc__ = function.__name__, function.__doc__
    make.__module__ = "torch"
    return make


def _of_unknown(function):
    """Make the values of `torch.tensor([loss.item()])` unknown if the loss is."""
    def tensor(data, *args, dtype=None, device=None, requires_grad=False, **kwargs):
        if not _has_unknown(data):
            return function(data, *args, dtype=dtype, device=device, requires_grad=requires_grad,
                            **kwargs)
        like = function(_with_zeros(data), dtype=dtype)
        device = torch.get_default_device() if device is None else device
        return Unknown.tensor(like.shape, like.dtype, torch.device(device)).requires_grad_(
            requires_grad)

    tensor.__name__, tensor.__module__ = "tensor", "torch"
    return tensor


def _has_unknown(data: object) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_has_unknown, data))
    return type(data) is Unknown


def _with_zeros(data: object) -> object:
    """Return nested lists with 0.0 in place of unknown numbers."""
    if isinstance(data, (list, tuple)):
        return list(map(_with_zeros, data))
    return 0.0 if type(data) is Unknown else data


def _unknown(gpu: CudaGpu, shape: Sequence[int], dtype: torch.dtype, device: torch.device
             ) -> torch.Tensor:
    """Return a tensor whose values were not computed.

    Args:
        gpu: this process's GPU.
        shape: its shape.
        dtype: its dtype.
        device: the CPU or the GPU.
    """
    if device.type == "cuda":
        tensor = torch.empty(shape, dtype=dtype, device=device)
        with hidden:
            gpu.values.forget([tensor])
        return tensor
    with hidden, _disable_current_modes():
        tensor = torch.empty(shape, dtype=dtype, device=META)
    gpu.hold_on_host(tensor)
    return tensor
