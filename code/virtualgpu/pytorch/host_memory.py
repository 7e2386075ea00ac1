"""Tensors in the host's memory without values, and gradients there, for CPU offloading.

C++ requires a gradient on its parameter's device. Here both may be on the CPU for the program,
while C++ has one on meta, because its values were not computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C import TensorBase

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.core.operand import tensors
from virtualgpu.core.plan import (
    changed_argument,
    changed_tensor,
    make_tensors,
    nested,
    to_meta,
)
from virtualgpu.core.rules.results import needs_values, new_tensors
from virtualgpu.pytorch.device import CudaDevice, space_of
from virtualgpu.pytorch.values import OVERWRITE, RANDOM_FILL, SHAPE_ONLY, written_by
from virtualgpu.pytorch.visible import META, Attribute, Space, hidden, inner, real_is_meta

NO_HOST_TIME = "the host's own work takes no time, such as an optimizer step on the CPU"


def install(gpu: CudaDevice) -> None:
    """Let gradients be assigned to parameters of the same device."""
    def assign(self: Tensor, value: Tensor | None) -> None:
        if isinstance(value, Tensor):
            spaces = space_of(gpu, self), space_of(gpu, value)
            if Space.HOST in spaces and set(spaces) <= {None, Space.HOST} and (
                    real_is_meta(self) != real_is_meta(value)):
                value = unknown_like(gpu, value, real_is_meta(self))
        TensorBase.grad.__set__(self, value)

    Tensor.grad = Attribute(TensorBase.grad.__get__, assign, TensorBase.grad.__delete__)


def operate(gpu: CudaDevice, func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> object:
    """Run an operation of the host on tensors, some of which have no values.

    Args:
        gpu: this process's GPU.
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        NoValue: the result depends on values that were not computed.
    """
    if needs_values(func, tensors(args)):
        raise NoValue(f"{program_line()} reads values that were not computed; run a tiny model "
                      "with --values all")
    truth = gpu.values.truth(func, args)
    if truth is not None:
        return torch.full(tensors(args)[0].shape, truth)
    written = written_by(func, args, kwargs)
    if _is_computable(gpu, func, tensors((*args, *kwargs.values())), written):
        out = func(*args, **kwargs)
        for item in written:
            gpu.values.regain(item)
        return out
    if written and func not in OVERWRITE and func._schema.name not in RANDOM_FILL:
        gpu.assumptions.note(NO_HOST_TIME)
    for item in written:
        if not item.is_meta:
            gpu.values.lose(item)
    changed = changed_argument(func, args, kwargs)
    if changed is not None:
        return changed_tensor(args, kwargs, changed)
    specs = new_tensors(func, args, kwargs)
    if specs is None:
        device = {} if kwargs.get("device") is None else {"device": META}
    out = func(*to_meta(args), **{**to_meta(kwargs), **device}) if specs is None else (
        make_tensors(specs))
    for result in nested(out):
        gpu.hold_on_host(result)
    return out


def _is_computable(gpu: CudaDevice, func: torch._ops.OpOverload, operands: Sequence[Tensor],
                   written: Sequence[Tensor]) -> bool:
    """Return whether an operation's values can be computed although an operand's are unknown.

    Args:
        gpu: this process's GPU.
        func: the operation.
        operands: all tensors among its arguments.
        written: those that it writes in place.
    """
    if func not in SHAPE_ONLY and func not in OVERWRITE:
        return False
    read = [item for item in operands if func in SHAPE_ONLY or item is not written[0]]
    return all(not item.is_meta for item in (*read, *written)) and (
        func in SHAPE_ONLY or gpu.values.all_known(read))


def unknown_like(gpu: CudaDevice, value: Tensor, on_meta: bool) -> Tensor:
    """Return a tensor of unknown values in the host's memory, with this one's shape.

    Args:
        gpu: this process's GPU.
        value: the tensor, or a DTensor.
        on_meta: whether C++ has it on meta instead of the CPU.
    """
    local = inner(value)
    if local is not None:
        return type(value)(unknown_like(gpu, local, on_meta), value._spec,
                           requires_grad=value.requires_grad)
    return unknown(gpu, value, value.dtype, on_meta)


def unknown(gpu: CudaDevice, like: Tensor, dtype: torch.dtype, on_meta: bool) -> Tensor:
    """Return a tensor of unknown values in the host's memory.

    Args:
        gpu: this process's GPU.
        like: a tensor of its shape.
        dtype: its dtype.
        on_meta: whether C++ has it on meta instead of the CPU.
    """
    with hidden, torch.utils._python_dispatch._disable_current_modes():
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=dtype,
                                     device=META if on_meta else "cpu")
        if on_meta:
            gpu.hold_on_host(tensor)
        else:
            gpu.values.lose(tensor)
    return tensor


class DeviceCopy(torch.autograd.Function):
    """A copy between the GPU and the host with a gradient; C++ sees both ends on meta."""

    @staticmethod
    def forward(ctx, x: Tensor, device: torch.device, options: dict) -> Tensor:
        ctx.device, ctx.dtype = x.device, x.dtype
        return x.to(device, **options)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        return grad.to(ctx.device, ctx.dtype), None, None


def autograd_wants_cpu() -> bool:
    """Return whether autograd is computing the gradient of a tensor that C++ sees on the CPU."""
    node = torch._C._current_autograd_node()
    if node is None or not node.next_functions:
        return False
    target, number = node.next_functions[0]
    return target is not None and target._input_metadata[number].device.type == "cpu"


def worker() -> bool:
    """Return whether this is a DataLoader worker process, whose tensors must have values."""
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None
