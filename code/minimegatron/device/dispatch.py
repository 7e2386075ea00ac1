"""Operations that a device may implement in its own way, chosen by PyTorch's dispatcher.

`operation` makes a function an operator of the `minimegatron` library (torch.library). The function
itself, written in plain torch, is the kernel on the CPU and on CUDA, and autograd records what it
calls. A virtual GPU registers kernels of its own (virtual_kernels.py). So a model calls
`ops.attention(..)` and never asks which device it runs on. A call costs about 10 us on the host, so
only operations with a kernel of their own on some device are worth it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

LIBRARY = torch.library.Library("minimegatron", "DEF")
Function = TypeVar("Function", bound=Callable[..., Any])


def operation(*mutates: str) -> Callable[[Function], Function]:
    """Return a decorator that defines an operation by its kernel in plain torch.

    The schema follows from the function's annotations. Arguments are tensors (or None), integers,
    and floats, and at least one is a tensor. The operation returns a tensor or nothing.

    Args:
        mutates: names of the tensors that it changes in place.
    """
    def define(function: Function) -> Function:
        name = function.__name__
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        LIBRARY.impl(name, function, "CompositeImplicitAutograd")
        # The overload itself: looking it up by its arguments at every call would cost more.
        defined = getattr(torch.ops.minimegatron, name).default
        defined.__doc__ = function.__doc__
        return defined
    return define
