"""The devices of tensors that Python sees: cuda:N where C++ sees meta.

This package and torch's internals need the real device, and use `hidden` for that.
"""

from __future__ import annotations

import threading
from enum import Enum

import torch
from torch._C import TensorBase

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
