"""torch.save and torch.load: tensors without values are written as their shapes alone."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor, serialization

from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.unknown import Unknown
from virtualgpu.pytorch.visible import CPU, META, Space, hidden, real_is_meta, space_of

SHAPES = "torch.save writes shapes without values where values were not computed"


class Loading:
    """A torch.load in progress: where tensors go.

    Attributes:
        gpu: of this process; install sets it.
        target: what map_location asks for.
        on_gpu: storages that the file says are on CUDA.
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
    """A tensor as it was saved, or where map_location wants it."""
    gpu = Loading.gpu
    if Loading.target is not None:
        on_gpu = Loading.target.type == "cuda"
    if not on_gpu and value is not None:
        return value.requires_grad_(requires_grad)
    with torch.utils._python_dispatch._disable_current_modes():
        made = torch.empty_strided(shape, stride, dtype=dtype, device=META)
    if on_gpu:
        gpu.hold(made)
        gpu.values.put(made, value)
    else:
        gpu.hold_on_host(made)
    return made.requires_grad_(requires_grad)


def loaded(load):
    """torch.load with the virtual GPU as a place to load to."""
    @functools.wraps(load)
    def call(file, map_location=None, *args, **kwargs):
        wanted = map_location
        if isinstance(wanted, dict):
            wanted = next(iter(wanted.values()), None)
        Loading.target = torch.device(wanted) if isinstance(wanted, (str, torch.device)) else None
        Loading.on_gpu = set()
        away = Loading.target is not None and Loading.target.type == "cuda"
        try:
            found = load(file, CPU if away else map_location, *args, **kwargs)
            return moved(found, away)
        finally:
            Loading.target = None
    return call


def moved(value: object, everything: bool) -> object:
    """Move tensors to the GPU: those that were on one, or everything. Containers stay the same."""
    if isinstance(value, Tensor):
        there = everything or value.untyped_storage()._cdata in Loading.on_gpu
        if not there or real_is_meta(value):
            return value
        found = value.detach().to(Loading.gpu.device).requires_grad_(value.requires_grad)
        return torch.nn.Parameter(found) if isinstance(value, torch.nn.Parameter) else found
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = moved(item, everything)
    elif isinstance(value, list):
        value[:] = [moved(item, everything) for item in value]
    elif type(value) is tuple:
        return tuple(moved(item, everything) for item in value)
    return value
