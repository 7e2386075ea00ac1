"""Gradients of parameters in the host's memory, as CPU offloading has them.

C++ wants a gradient on its parameter's device. Here both may be on the CPU for the program, while
for C++ one is on meta, because nobody computed its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C import TensorBase

from virtualgpu.pytorch.visible import META, Space, hidden, inner, real_is_meta, space_of

if TYPE_CHECKING:
    from virtualgpu.pytorch.mode import CudaGpu


def install(gpu: CudaGpu) -> None:
    """Let gradients be assigned to parameters of the same device."""
    def assign(self: Tensor, value: Tensor | None) -> None:
        if isinstance(value, Tensor):
            spaces = space_of(gpu, self), space_of(gpu, value)
            if Space.HOST in spaces and set(spaces) <= {None, Space.HOST} and (
                    real_is_meta(self) != real_is_meta(value)):
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
    return unknown(gpu, value, value.dtype, on_meta)


def unknown(gpu: CudaGpu, like: Tensor, dtype: torch.dtype, on_meta: bool) -> Tensor:
    """Return a tensor in the host's memory whose values nobody knows.

    Args:
        gpu: of this process.
        like: a tensor of its shape.
        dtype: its type.
        on_meta: whether C++ shall have it on meta.
    """
    with hidden, torch.utils._python_dispatch._disable_current_modes():
        made = torch.empty_strided(like.shape, like.stride(), dtype=dtype,
                                   device=META if on_meta else "cpu")
        if on_meta:
            gpu.hold_on_host(made)
        else:
            gpu.values.lose(made)
    return made


class Move(torch.autograd.Function):
    """A copy over the bus whose gradient comes back: to C++ both ends are on meta."""

    @staticmethod
    def forward(ctx, x: Tensor, device: torch.device, options: dict) -> Tensor:
        ctx.device, ctx.dtype = x.device, x.dtype
        return x.to(device, **options)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        return grad.to(ctx.device, ctx.dtype), None, None


def autograd_wants_cpu() -> bool:
    """Whether the backward pass makes the gradient of a tensor that C++ knows to be on the CPU."""
    node = torch._C._current_autograd_node()
    if node is None or not node.next_functions:
        return False
    target, number = node.next_functions[0]
    return target is not None and target._input_metadata[number].device.type == "cpu"
