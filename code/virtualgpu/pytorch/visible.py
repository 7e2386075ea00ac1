"""The devices of tensors that Python sees: cuda:N where C++ sees meta.

This package and torch's internals need the real device, and use `hidden` for that.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch._C import TensorBase

if TYPE_CHECKING:
    from virtualgpu.pytorch.mode import CudaGpu

META, CPU = torch.device("meta"), torch.device("cpu")
PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
real_device = TensorBase.device.__get__
real_is_cuda = TensorBase.is_cuda.__get__
real_is_cpu = TensorBase.is_cpu.__get__
real_is_meta = TensorBase.is_meta.__get__


class Attribute(property):
    """A property that replaces an attribute of torch.Tensor.

    The original descriptors have an `__objclass__`, and torch 2.11 reads it when torch._dynamo is
    imported, which may happen after the replacement.
    """

    __objclass__ = torch.Tensor


class Space(Enum):
    """Memory that holds a tensor whose values C++ does not have.

    GPU: the virtual GPU's memory. HOST: the host's memory, with values that were not computed; for
    C++ it is a meta tensor, or a CPU tensor that such values were written to. OWN: no memory,
    because the program itself created a meta tensor.
    """

    GPU, HOST, OWN = range(3)


class _Depth(threading.local):
    """Nesting depth of these contexts in this thread."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


hidden = _Depth()  # Python sees what C++ sees
asked_for_meta = _Depth()  # the program's own tensors without memory
bypassed = _Depth()  # torch infers shapes; no kernel runs


def key_of(tensor: torch.Tensor) -> int:
    """Return the identity of the tensor's storage."""
    return tensor.untyped_storage()._cdata


def inner(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a DTensor's local tensor, or the tensor that an asynchronous collective wraps."""
    local = getattr(tensor, "_local_tensor", None)
    return getattr(tensor, "elem", None) if local is None else local


def space_of(gpu: CudaGpu, tensor: torch.Tensor) -> Space | None:
    """Return the memory that holds a tensor, or None if C++ has its values."""
    if not real_is_meta(tensor):
        return Space.HOST if gpu.values.lost and is_lost(gpu, tensor) else None
    if type(tensor) not in PLAIN_TYPES:
        local = inner(tensor)
        if local is not None:
            return space_of(gpu, local)
    try:
        key = key_of(tensor)
    except (NotImplementedError, RuntimeError):
        if torch._C._has_storage(tensor):
            raise
        return Space.GPU  # a wrapper
    if key in gpu.blocks:
        return Space.GPU
    if key in gpu.on_host:
        return Space.HOST
    # Tensors that torch created inside an operation belong to the GPU.
    return Space.OWN if key in gpu.own else Space.GPU


def is_lost(gpu: CudaGpu, tensor: torch.Tensor) -> bool:
    """Return whether unknown values were written to a CPU tensor."""
    local = None if type(tensor) in PLAIN_TYPES else inner(tensor)
    holder = tensor if local is None else local
    try:
        return key_of(holder) in gpu.values.lost
    except (NotImplementedError, RuntimeError):
        if torch._C._has_storage(holder):
            raise
        return False  # a wrapper


def device_of(gpu: CudaGpu, tensor: torch.Tensor) -> torch.device:
    """Return the device that the program sees."""
    space = space_of(gpu, tensor)
    if space is Space.GPU:
        return gpu.device
    return CPU if space is Space.HOST else real_device(tensor)
