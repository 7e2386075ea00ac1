"""Gradients of parameters in the host's memory, as CPU offloading has them.

C++ wants a gradient on its parameter's device. Here both may be on the CPU for the program, while
for C++ one is on meta, because nobody computed its values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import TensorBase

from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import META, Space, hidden, inner, real_is_meta, space_of

INSTANT = "the host's own work takes no time, such as an optimizer's on parameters in its memory"


def install(gpu: CudaGpu) -> None:
    """Let gradients be assigned to parameters of the same device."""
    def assign(self: Tensor, value: Tensor | None) -> None:
        if isinstance(value, Tensor):
            spaces = space_of(gpu, self), space_of(gpu, value)
            if Space.HOST in spaces and set(spaces) <= {None, Space.HOST}:
                gpu.assumptions.note(INSTANT)
                if real_is_meta(self) != real_is_meta(value):
                    value = alike(gpu, value, real_is_meta(self))
        TensorBase.grad.__set__(self, value)

    Tensor.grad = property(TensorBase.grad.__get__, assign, TensorBase.grad.__delete__)


def alike(gpu: CudaGpu, value: Tensor, on_meta: bool) -> Tensor:
    """Return a tensor of unknown values in the host's memory, with this one's shape.

    Args:
        gpu: of this process.
        value: the tensor, or a DTensor.
        on_meta: whether C++ shall have it on meta.
    """
    local = inner(value)
    if local is not None:
        return type(value)(alike(gpu, local, on_meta), value._spec,
                           requires_grad=value.requires_grad)
    with hidden, torch.utils._python_dispatch._disable_current_modes():
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype,
                                   device=META if on_meta else "cpu")
        if on_meta:
            gpu.hold_on_host(made)
        else:
            gpu.values.lose(made)
    return made
