"""A tensor as plain data, and how tensors lie in memory.

Rules read of a tensor what an Operand has. The trusted side prices records with Operands: even on
meta, a torch.Tensor of sizes that a stranger chose would end in torch's C++ code, which does not
check every size that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Operand:
    """Shape, strides (in elements), and dtype, under the names that torch.Tensor has for them."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize


TENSORS = (torch.Tensor, Operand)
AnyTensor = torch.Tensor | Operand


def operand_of(tensor: AnyTensor) -> Operand:
    """Return a tensor as plain data."""
    return Operand(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def tensors(arguments: Sequence) -> list[torch.Tensor]:
    """Return the tensors among the arguments, including those in lists."""
    flat = []
    for argument in arguments:
        if isinstance(argument, TENSORS):
            flat.append(argument)
        elif isinstance(argument, (list, tuple)):
            flat += [item for item in argument if isinstance(item, TENSORS)]
    return flat


def moved(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor that cross the memory bus; expanded elements count once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            count *= size
    return count * tensor.element_size() if tensor.numel() else 0


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous(shape: Sequence[int], dtype: torch.dtype) -> Operand:
    """Return the description of a contiguous tensor."""
    return Operand(tuple(shape), contiguous_strides(shape), dtype)


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """Return what these broadcast to, or None; torch.broadcast_shapes imports torch's compiler."""
    dims, result = max(map(len, shapes)), []
    for sizes in zip(*((*[1] * (dims - len(shape)), *shape) for shape in shapes), strict=True):
        size = next((size for size in sizes if size != 1), 1)
        if any(other not in (1, size) for other in sizes):
            return None
        result.append(size)
    return tuple(result)


def broadcast_strides(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor that is broadcast to `shape`."""
    own = [stride if size > 1 else 0
           for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return [0] * (len(shape) - len(own)) + [
        stride if tensor.shape[dim] == size else 0
        for dim, (stride, size) in enumerate(zip(own, shape[len(shape) - len(own):], strict=True))]


def dense_strides(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the strides of a dense result whose dimensions have the operands' order in memory, as
    in torch's TensorIterator: the first operand whose strides differ in two dimensions decides.

    Args:
        shape: shape of the result.
        operands: strides of each operand, broadcast to this shape.
    """
    def inner(a: int, b: int) -> int:
        for strides in operands:
            if strides[a] and strides[b] and strides[a] != strides[b]:
                return strides[b] - strides[a]
            if strides[a] and strides[b] and shape[a] > shape[b]:
                return -1
        return 0

    order = list(reversed(range(len(shape))))  # innermost first
    for start in range(1, len(shape)):
        current = start
        for before in reversed(range(start)):
            comparison = inner(order[before], order[current])
            if comparison < 0:
                order[before], order[current] = order[current], order[before]
                current = before
            elif comparison > 0:
                break
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def channels_last(tensor: AnyTensor) -> bool:
    """Return whether the channels of images [n, c, h, w] are their innermost dimension (NHWC), as
    `is_channels_last_strides_2d_s4` of c10/core/MemoryFormat.h does."""
    sizes, strides, least = tensor.shape, tensor.stride(), 0
    if len(sizes) != 4 or strides[1] == 0:
        return False
    for dim in (1, 3, 2, 0):
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(sizes[dim], 1)
    return True
