"""Reading the values of tensors as numbers, booleans, numpy arrays, and strings."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.pytorch.arrays import unknown_array
from virtualgpu.pytorch.assumptions import BRANCHES, WITHOUT_READING
from virtualgpu.pytorch.device import space_of
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.unknown import Unknown, as_float
from virtualgpu.pytorch.visible import Space, hidden, inner, real_is_meta

MAX_UNKNOWN = 2**16  # numbers of a numpy array without values


def install(gpu: CudaGpu) -> None:
    """Make every read wait for the GPU, and return the value if it is known."""
    def unknown(self: Tensor) -> bool:
        """Wait for the GPU, as any read does; return whether the values are unknown."""
        space = space_of(gpu, self)
        if space is Space.GPU:
            gpu.wait_for_stream()
        return space in (Space.GPU, Space.HOST)

    def local_tensor(self: Tensor) -> Tensor:
        local = None if type(self) in (Tensor, torch.nn.Parameter) else inner(self)
        if local is None:
            return self
        return local_tensor(self.trigger_wait() if hasattr(self, "trigger_wait") else local)

    def reader(name: str, otherwise: Callable) -> None:
        original = getattr(Tensor, name)

        def read(self: Tensor, *args, **kwargs):
            if hidden.depth or not (real_is_meta(self) or space_of(gpu, self)):
                return original(self, *args, **kwargs)
            self = local_tensor(self)
            if not unknown(self):
                return original(self, *args, **kwargs)
            if gpu.values.known(self):
                with hidden:
                    return original(gpu.values.value(self), *args, **kwargs)
            typical = gpu.values.typical_of(self)
            if typical is not None:
                with hidden:
                    return original(typical, *args, **kwargs)
            return otherwise(self, *args, **kwargs)
        setattr(Tensor, name, read)

    for name, otherwise in _unknown_reads(gpu).items():
        reader(name, otherwise)
    _refuse_numpy_of_gpu(gpu)
    shown = Tensor.__repr__
    Tensor.__repr__ = lambda self, **options: text(gpu, self, shown, options)


def _unknown_reads(gpu: CudaGpu) -> dict[str, Callable]:
    """Return the methods of Tensor that read values, with what they return for unknown values."""
    def decide(use: str, number: bool = False) -> Callable:
        return lambda self, *_: gpu.assumptions.decide(use, number)

    return {
        "item": lambda self: Unknown(has_integers(self)),
        "tolist": lambda self: unknown_list(self.shape, has_integers(self)),
        "__bool__": decide(BRANCHES),
        "__int__": lambda self: int(Unknown()),
        "__index__": lambda self: int(Unknown()),
        "__float__": lambda self: as_float(gpu.assumptions, sys._getframe(2)),
        "__complex__": decide("needs a number", True),
        "numpy": lambda self, **_: as_array(gpu, self),
        "__array__": lambda self, *_, **__: as_array(gpu, self),
        "__contains__": decide(BRANCHES),
        "__format__": lambda self, spec="": format(Unknown(), spec),
    }


def _refuse_numpy_of_gpu(gpu: CudaGpu) -> None:
    """Raise TypeError for numpy arrays of GPU tensors, as CUDA does: they must be copied first."""
    for name in ("numpy", "__array__"):
        def refuse(self, *_, **__):
            if hidden.depth or space_of(gpu, self) is not Space.GPU:
                return NotImplemented
            raise TypeError(f"can't convert {gpu.device} device type tensor to numpy. Use "
                            "Tensor.cpu() to copy the tensor to host memory first.")
        setattr(Tensor, name, wrapped(getattr(Tensor, name), refuse))


def has_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def unknown_list(shape: torch.Size, integers: bool) -> object:
    """Return nested lists of this shape, of unknown numbers; one number without dimensions.

    Args:
        shape: the tensor's shape.
        integers: whether they are integers.
    """
    if not shape:
        return Unknown(integers)
    return [unknown_list(shape[1:], integers) for _ in range(shape[0])]


def as_array(gpu: CudaGpu, tensor: Tensor) -> object:
    """Return a numpy array of unknown numbers, to print or to average.

    Raises:
        NoValue: it is too large for one object per number, or a check reads it, which has no
            --assume.
    """
    if tensor.numel() > MAX_UNKNOWN or not gpu.assumptions.command_line:
        stop(gpu, "becomes a numpy array")
    return unknown_array(tensor.shape, has_integers(tensor))


def stop(gpu: CudaGpu, what: str) -> None:
    """Raise NoValue, because --assume supplies single values only."""
    raise NoValue(
        f"{program_line()}: a tensor {what}, but its values were not computed"
        + ("; run a tiny model with --values all" if gpu.assumptions.command_line
           else f": {WITHOUT_READING}"))


def text(gpu: CudaGpu, tensor: Tensor, shown: Callable, options: dict) -> str:
    """Return what torch prints for a tensor on CUDA, with `?` for values that were not computed.

    Args:
        gpu: this process's GPU.
        shown: torch's own __repr__.
        options: arguments of __repr__.
    """
    if hidden.depth or type(tensor) not in (Tensor, torch.nn.Parameter):
        return shown(tensor, **options)
    space = space_of(gpu, tensor)
    if space is None:
        return shown(tensor, **options)
    if space is Space.OWN:
        with hidden:
            return shown(tensor, **options)
    extra = f", device='{gpu.device}'" if space is Space.GPU else ""
    if tensor.grad_fn is not None:
        extra += f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    elif tensor.requires_grad:
        extra += ", requires_grad=True"
    if gpu.values.known(tensor):
        with hidden, torch._C._DisableTorchDispatch():
            body = shown(gpu.values.value(tensor), **options)[:-1]
    else:
        body = f"tensor(?, size={tuple(tensor.shape)}, dtype={tensor.dtype}"
    return f"{body}{extra})"


def wrapped(original: Callable, override: Callable) -> Callable:
    """Return a method that calls `override`, and the original if that returns NotImplemented.

    Args:
        original: torch's method.
        override: the method that is called first.
    """
    def call(self: Tensor, *args, **kwargs):
        result = override(self, *args, **kwargs)
        return original(self, *args, **kwargs) if result is NotImplemented else result
    call.__name__ = original.__name__
    return call
