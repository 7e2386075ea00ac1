"""Pinned host memory: tensors remember that they are pinned, but copies are not faster."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.pytorch.device import remember
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import key_of


def install(gpu: CudaGpu) -> None:
    """Replace Tensor.pin_memory and Tensor.is_pinned."""
    def is_pinned(self: Tensor, *_: object, **__: object) -> bool:
        return bool(gpu.pinned) and self.layout is torch.strided and key_of(self) in gpu.pinned

    def pin_memory(self: Tensor, *_: object, **__: object) -> Tensor:
        """Return a copy in pinned memory, or the tensor itself if it is pinned."""
        if not self.is_cpu:
            raise RuntimeError(
                f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        return self if self.is_pinned() else marked(gpu, self.detach().clone())

    Tensor.is_pinned, Tensor.pin_memory = is_pinned, pin_memory


def marked(gpu: CudaGpu, tensor: Tensor) -> Tensor:
    """Mark a new tensor as pinned, and return it."""
    remember(tensor, gpu.pinned)
    return tensor
