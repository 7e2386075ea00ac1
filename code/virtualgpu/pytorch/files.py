"""torch.save and torch.load, which write only the shapes of tensors without values."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor, serialization

from virtualgpu.pytorch.device import space_of
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.unknown import Unknown
from virtualgpu.pytorch.visible import CPU, META, Space, hidden, real_is_meta

SHAPES = "torch.save writes shapes without values where values were not computed"


class Loading:
    """State of a torch.load in progress.

    Attributes:
        gpu: this process's GPU; install sets it.
        target: the device of map_location, or None.
        on_gpu: storages that were on CUDA when they were saved.
    """

    gpu: CudaGpu
    target: torch.device | None = None
    on_gpu: ClassVar[set[int]] = set()


def install(gpu: CudaGpu) -> None:
    """Let programs save and load checkpoints."""
    Loading.gpu = gpu
    reduce = Tensor.__reduce_ex__

    def reduced(self: Tensor, protocol: int):
        space = None if hidden.depth else space_of(gpu, self)
        if space not in (Space.GPU, Space.HOST) or type(self) is not Tensor:
            return reduce(self, protocol)
        value = gpu.values.value(self).clone() if gpu.values.known(self) else None
        if value is None:
            gpu.assumptions.note(SHAPES)
        return rebuild, (space is Space.GPU, tuple(self.shape), self.stride(), self.dtype, value,
                         self.requires_grad)

    Tensor.__reduce_ex__ = reduced
    serialization.add_safe_globals([rebuild, Unknown])
    restore = serialization.default_restore_location

    def restored(storage, location: str):
        if location.startswith("cuda"):
            Loading.on_gpu.add(storage._cdata)
            return storage
        return restore(storage, location)

    serialization.default_restore_location = restored
    torch.load = serialization.load = loaded(serialization.load)


def rebuild(on_gpu: bool, shape: tuple, stride: tuple, dtype: torch.dtype, value: Tensor | None,
            requires_grad: bool) -> Tensor:
    """Return a tensor on the device it was saved from, or on map_location's."""
    gpu = Loading.gpu
    if Loading.target is not None:
        on_gpu = Loading.target.type == "cuda"
    if not on_gpu and value is not None:
        return value.requires_grad_(requires_grad)
    with torch.utils._python_dispatch._disable_current_modes():
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=META)
    if on_gpu:
        gpu.hold(tensor)
        gpu.values.put(tensor, value)
    else:
        gpu.hold_on_host(tensor)
    return tensor.requires_grad_(requires_grad)


def loaded(load):
    """Return torch.load with the virtual GPU as a possible map_location."""
    @functools.wraps(load)
    def call(file, map_location=None, *args, **kwargs):
        target = map_location
        if isinstance(target, dict):
            target = next(iter(target.values()), None)
        Loading.target = torch.device(target) if isinstance(target, (str, torch.device)) else None
        Loading.on_gpu = set()
        to_gpu = Loading.target is not None and Loading.target.type == "cuda"
        try:
            content = load(file, CPU if to_gpu else map_location, *args, **kwargs)
            return moved(content, to_gpu)
        finally:
            Loading.target = None
    return call


def moved(value: object, everything: bool) -> object:
    """Move tensors that were saved from a GPU, or all, to the GPU; update containers in place."""
    if isinstance(value, Tensor):
        moves = everything or value.untyped_storage()._cdata in Loading.on_gpu
        if not moves or real_is_meta(value):
            return value
        on_gpu = value.detach().to(Loading.gpu.device).requires_grad_(value.requires_grad)
        return torch.nn.Parameter(on_gpu) if isinstance(value, torch.nn.Parameter) else on_gpu
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = moved(item, everything)
    elif isinstance(value, list):
        value[:] = [moved(item, everything) for item in value]
    elif type(value) is tuple:
        return tuple(moved(item, everything) for item in value)
    return value
