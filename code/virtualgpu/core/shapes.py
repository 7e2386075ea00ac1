"""Shapes, strides, and dtypes of the results of operations in training steps.

Torch's own shape functions for meta tensors are Python code that imports its compiler and
takes up to 10 ms per call. gpu.py falls back to them for all other operations and for unusual
strides. The tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class TensorSpec(NamedTuple):
    """Shape, strides (in elements), and dtype of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


Results = Any  # a TensorSpec, None, a number, or a list of these


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous(shape: Sequence[int], dtype: torch.dtype) -> TensorSpec:
    """Return the specification of a contiguous tensor."""
    return TensorSpec(tuple(shape), contiguous_strides(shape), dtype)


def spec_of(tensor: torch.Tensor | None) -> TensorSpec | None:
    """Return the specification of an existing tensor."""
    return None if tensor is None else TensorSpec(tuple(tensor.shape), tensor.stride(),
                                                  tensor.dtype)


def result_specs(out: object) -> Results:
    """Replace the tensors in an operation's result with their specifications."""
    if isinstance(out, torch.Tensor):
        return spec_of(out)
    return list(map(result_specs, out)) if isinstance(out, (list, tuple)) else out


def like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> TensorSpec | None:
    """Return a result with the tensor's strides, or None if the tensor's memory has gaps."""
    if tensor.is_contiguous():
        return contiguous(tensor.shape, dtype or tensor.dtype)
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return None
        step *= size
    return TensorSpec(tuple(tensor.shape), tensor.stride(), dtype or tensor.dtype)


BOOLEAN = {"eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isnan", "isinf", "logical_not",
           "logical_and", "logical_or"}


def pointwise(name: str, args: Sequence, kwargs: dict) -> TensorSpec | None:
    """Return the result of an elementwise operation, or None if torch must compute it.

    Args:
        name: the operation, without its namespace.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    operands = [item for item in args if isinstance(item, torch.Tensor)]
    first = operands[0]
    if name == "where":
        dtype = torch.result_type(args[1], args[2])
    elif name in BOOLEAN:
        dtype = torch.bool
    elif len(args) > 1 and isinstance(args[1], (torch.Tensor, int, float)) and name in (
            "add", "sub", "mul", "div", "rsub", "maximum", "minimum", "pow", "bitwise_and",
            "bitwise_or"):
        dtype = torch.result_type(args[0], args[1])
    else:
        dtype = first.dtype
    if not dtype.is_floating_point and name in ("div", "sqrt", "exp", "log", "reciprocal", "rsqrt"):
        return None
    shape = first.shape
    if any(other.shape != shape for other in operands):
        shape = broadcast_shape(*(other.shape for other in operands))
        if shape is None:
            return None
    elif all(other.is_contiguous() for other in operands):
        return contiguous(shape, dtype)
    return TensorSpec(tuple(shape), dense_strides(shape, [broadcast_strides(other, shape)
                                                          for other in operands]), dtype)


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


def reduced(tensor: torch.Tensor, dims: Sequence[int] | int | None, keep: bool,
            dtype: torch.dtype | None) -> TensorSpec:
    """Return the result of a reduction.

    Args:
        tensor: the operand.
        dims: dimensions to reduce; all of them if empty or None.
        keep: whether reduced dimensions stay, with size 1.
        dtype: dtype of the result; None for the operand's.
    """
    dims = [dims] if isinstance(dims, int) else dims
    removed = {dim % tensor.dim() for dim in dims} if dims and tensor.dim() else range(tensor.dim())
    shape = [1 if dim in removed else size for dim, size in enumerate(tensor.shape)
             if keep or dim not in removed]
    return contiguous(shape, dtype or tensor.dtype)


def argument(args: Sequence, position: int):
    """Return the positional argument, or None if it was omitted."""
    return args[position] if position < len(args) else None


def _matmul(a: torch.Tensor, b: torch.Tensor) -> TensorSpec | None:
    """Return a [.., m, k] @ b [.., k, n], or None if the shapes differ, so that torch raises."""
    if a.dtype != b.dtype:  # torch does not check it on meta tensors
        raise RuntimeError("expected both matrices of a product to have the same dtype, but got: "
                           f"{a.dtype} != {b.dtype}")
    if (a.dim(), a.shape[:-2], a.shape[-1]) != (b.dim(), b.shape[:-2], b.shape[-2]):
        return None
    return contiguous((*a.shape[:-1], b.shape[-1]), a.dtype)


def _sum(args: Sequence, kwargs: dict) -> TensorSpec:
    default = args[0].dtype if args[0].dtype.is_floating_point else torch.int64
    return reduced(args[0], argument(args, 1), bool(argument(args, 2)),
                   kwargs.get("dtype") or default)


def _amax(args: Sequence, kwargs: dict) -> TensorSpec:
    return reduced(args[0], argument(args, 1), bool(argument(args, 2)), None)


def _norm(args: Sequence, kwargs: dict) -> TensorSpec:
    return reduced(args[0], argument(args, 2), bool(argument(args, 3)), kwargs.get("dtype"))


def _layer_norm(args: Sequence, kwargs: dict) -> list[TensorSpec]:
    x, normal = args[0], len(args[1])
    outer = (*x.shape[:x.dim() - normal], *([1] * normal))
    return [contiguous(x.shape, x.dtype), *([contiguous(outer, torch.float32)] * 2)]


def _layer_norm_backward(args: Sequence, kwargs: dict) -> list[TensorSpec] | None:
    x, weight, bias, mask = args[1], args[5], args[6], args[7]
    return [contiguous(t.shape, t.dtype) for t in (x, weight, bias)] if all(mask) else None


def _cat(args: Sequence, kwargs: dict) -> TensorSpec | None:
    parts, dim = args[0], argument(args, 1) or 0
    first = parts[0]
    if not all(part.dtype == first.dtype and part.dim() == first.dim() for part in parts):
        return None
    shape = list(first.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return contiguous(shape, first.dtype)


def _stack(args: Sequence, kwargs: dict) -> TensorSpec | None:
    parts, dim = args[0], argument(args, 1) or 0
    first = parts[0]
    if dim < 0 or not all(part.dtype == first.dtype for part in parts):
        return None
    return contiguous((*first.shape[:dim], len(parts), *first.shape[dim:]), first.dtype)


def _clone(args: Sequence, kwargs: dict) -> TensorSpec | None:
    x = args[0]
    if kwargs.get("memory_format") == torch.contiguous_format:
        return contiguous(x.shape, x.dtype)
    return like(x)


def _like(args: Sequence, kwargs: dict) -> TensorSpec | None:
    return like(args[0], kwargs.get("dtype"))


def _sized(args: Sequence, kwargs: dict) -> TensorSpec:
    return contiguous(args[0], kwargs.get("dtype") or torch.get_default_dtype())


def _arange(args: Sequence, kwargs: dict) -> TensorSpec | None:
    start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    if {type(start), type(end), type(step)} != {int} or step == 0 or step * (end - start) < 0:
        return None
    return contiguous((len(range(start, end, step)),), kwargs.get("dtype") or torch.int64)


def _new(args: Sequence, kwargs: dict) -> TensorSpec:
    return contiguous(args[1], kwargs.get("dtype") or args[0].dtype)


RULES: dict[str, Callable[[Sequence, dict], TensorSpec | list[TensorSpec] | None]] = {
    "aten.mm": lambda a, k: _matmul(a[0], a[1]),
    "aten.addmm": lambda a, k: _matmul(a[1], a[2]),
    "aten.bmm": lambda a, k: _matmul(a[0], a[1]),
    "aten.embedding": lambda a, k: contiguous((*a[1].shape, a[0].shape[1]), a[0].dtype),
    "aten.gather": lambda a, k: contiguous(a[2].shape, a[0].dtype),
    "aten.nll_loss_forward": lambda a, k: [
        contiguous((a[1].shape if a[3] == 0 else ()), a[0].dtype), contiguous((), a[0].dtype)],
    "aten.nll_loss_backward": lambda a, k: contiguous(a[1].shape, a[1].dtype),
    "aten.sum": _sum, "aten.amax": _amax, "aten.linalg_vector_norm": _norm,
    "aten.any": lambda a, k: contiguous((), torch.bool) if len(a) == 1 else None,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.cat": _cat, "aten.stack": _stack, "aten.clone": _clone, "aten._to_copy": _like,
    "aten.empty": _sized, "aten.zeros": _sized, "aten.ones": _sized,
    "aten.new_empty": _new, "aten.new_zeros": _new, "aten.arange": _arange,
    "aten.full": lambda a, k: contiguous(a[0], k["dtype"]) if k.get("dtype") else None,
    "aten._softmax": lambda a, k: like(a[0]), "aten._log_softmax": lambda a, k: like(a[0]),
    "aten._log_softmax_backward_data": lambda a, k: like(a[1], a[3]),
    "aten.frexp": lambda a, k: None,  # tagged as pointwise, but has two results
}
RULES |= dict.fromkeys(("aten.empty_like", "aten.zeros_like", "aten.ones_like"), _like)


def results(func: torch._ops.OpOverload, args: Sequence, kwargs: dict
            ) -> TensorSpec | list[TensorSpec] | None:
    """Return the specification of an operation's new result, or None if torch must compute it.

    Args:
        func: the operation.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    name = str(func._overloadpacket)
    if name in ("aten._softmax", "aten._log_softmax") and args[2]:
        return None  # half to float
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    rule = RULES.get(name)
    if rule is not None:
        return rule(args, kwargs)
    if torch.Tag.pointwise in func.tags and any(isinstance(a, torch.Tensor) for a in args):
        return pointwise(name.removeprefix("aten."), args, kwargs)
    return None
