"""Shapes, strides, and dtypes of results, for the operations of training steps.

Torch's own shape functions for meta tensors are Python code that imports its compiler (1.5 s) and
takes up to 10 ms per call. For all other operations, and for unusual strides, gpu.py falls back to
them. The tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Spec(NamedTuple):
    """Shape, strides (in elements), and dtype of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


Results = Any  # a Spec, None, a number, or a list of these


def rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Spec:
    """Return the specification of a contiguous tensor."""
    return Spec(tuple(shape), rows(shape), dtype)


def of(tensor: torch.Tensor | None) -> Spec | None:
    """Return the specification of an existing tensor."""
    return None if tensor is None else Spec(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def of_results(out: object) -> Results:
    """Replace the tensors in what an operation returns by their specifications."""
    if isinstance(out, torch.Tensor):
        return of(out)
    return list(map(of_results, out)) if isinstance(out, (list, tuple)) else out


def like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> Spec | None:
    """Return a result with a tensor's strides, or None if the tensor's memory has gaps."""
    if tensor.is_contiguous():
        return fresh(tensor.shape, dtype or tensor.dtype)
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return None
        step *= size
    return Spec(tuple(tensor.shape), tensor.stride(), dtype or tensor.dtype)


BOOLEAN = {"eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isnan", "isinf", "logical_not",
           "logical_and", "logical_or"}


def pointwise(name: str, args: Sequence, kwargs: dict) -> Spec | None:
    """Return the result of an elementwise operation, or None if torch has to be asked.

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
        shape = torch.broadcast_shapes(*(other.shape for other in operands))
    elif all(other.is_contiguous() for other in operands):
        return fresh(shape, dtype)
    return Spec(tuple(shape), ordered(shape, [spread(other, shape) for other in operands]), dtype)


def spread(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor that is broadcast to `shape`."""
    own = [stride if size > 1 else 0
           for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return [0] * (len(shape) - len(own)) + [
        stride if tensor.shape[at] == size else 0
        for at, (stride, size) in enumerate(zip(own, shape[len(shape) - len(own):], strict=True))]


def ordered(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the strides of a dense result whose dimensions have the operands' order in memory, as
    in torch's TensorIterator: the first operand whose strides differ in two dimensions decides.

    Args:
        shape: of the result.
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
        at = start
        for before in reversed(range(start)):
            verdict = inner(order[before], order[at])
            if verdict < 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif verdict > 0:
                break
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def reduced(tensor: torch.Tensor, dims: Sequence[int] | int | None, keep: bool,
            dtype: torch.dtype | None) -> Spec:
    """Return the result of a reduction.

    Args:
        tensor: the operand.
        dims: dimensions that are reduced; all of them if it is empty or None.
        keep: whether reduced dimensions stay, with size 1.
        dtype: of the result; None for the operand's.
    """
    dims = [dims] if isinstance(dims, int) else dims
    gone = {dim % tensor.dim() for dim in dims} if dims and tensor.dim() else range(tensor.dim())
    shape = [1 if dim in gone else size for dim, size in enumerate(tensor.shape)
             if keep or dim not in gone]
    return fresh(shape, dtype or tensor.dtype)


def at(args: Sequence, position: int):
    """Return the argument at a position, or None if it was left out."""
    return args[position] if position < len(args) else None


def _product(a: torch.Tensor, b: torch.Tensor) -> Spec | None:
    """Return a [.., m, k] @ b [.., k, n], or None if they do not fit, so that torch raises."""
    if a.dtype != b.dtype:  # torch does not check it on meta tensors
        raise RuntimeError("expected both matrices of a product to have the same dtype, but got: "
                           f"{a.dtype} != {b.dtype}")
    if (a.dim(), a.shape[:-2], a.shape[-1]) != (b.dim(), b.shape[:-2], b.shape[-2]):
        return None
    return fresh((*a.shape[:-1], b.shape[-1]), a.dtype)


def _sum(args: Sequence, kwargs: dict) -> Spec:
    whole = args[0].dtype if args[0].dtype.is_floating_point else torch.int64
    return reduced(args[0], at(args, 1), bool(at(args, 2)), kwargs.get("dtype") or whole)


def _amax(args: Sequence, kwargs: dict) -> Spec:
    return reduced(args[0], at(args, 1), bool(at(args, 2)), None)


def _norm(args: Sequence, kwargs: dict) -> Spec:
    return reduced(args[0], at(args, 2), bool(at(args, 3)), kwargs.get("dtype"))


def _layer_norm(args: Sequence, kwargs: dict) -> list[Spec]:
    x, normal = args[0], len(args[1])
    outer = (*x.shape[:x.dim() - normal], *([1] * normal))
    return [fresh(x.shape, x.dtype), *([fresh(outer, torch.float32)] * 2)]


def _layer_norm_backward(args: Sequence, kwargs: dict) -> list[Spec] | None:
    x, weight, bias, mask = args[1], args[5], args[6], args[7]
    return [fresh(t.shape, t.dtype) for t in (x, weight, bias)] if all(mask) else None


def _cat(args: Sequence, kwargs: dict) -> Spec | None:
    parts, dim = args[0], at(args, 1) or 0
    first = parts[0]
    if not all(part.dtype == first.dtype and part.dim() == first.dim() for part in parts):
        return None
    shape = list(first.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return fresh(shape, first.dtype)


def _stack(args: Sequence, kwargs: dict) -> Spec | None:
    parts, dim = args[0], at(args, 1) or 0
    first = parts[0]
    if dim < 0 or not all(part.dtype == first.dtype for part in parts):
        return None
    return fresh((*first.shape[:dim], len(parts), *first.shape[dim:]), first.dtype)


def _clone(args: Sequence, kwargs: dict) -> Spec | None:
    x = args[0]
    if kwargs.get("memory_format") == torch.contiguous_format:
        return fresh(x.shape, x.dtype)
    return like(x)


def _to_copy(args: Sequence, kwargs: dict) -> Spec | None:
    return like(args[0], kwargs.get("dtype"))


def _like(args: Sequence, kwargs: dict) -> Spec | None:
    return like(args[0], kwargs.get("dtype"))


def _sized(args: Sequence, kwargs: dict) -> Spec:
    return fresh(args[0], kwargs.get("dtype") or torch.get_default_dtype())


def _new(args: Sequence, kwargs: dict) -> Spec:
    return fresh(args[1], kwargs.get("dtype") or args[0].dtype)


def _softmax(args: Sequence, kwargs: dict) -> Spec | None:
    return like(args[0])


RULES: dict[str, Callable[[Sequence, dict], Spec | list[Spec] | None]] = {
    "aten.mm": lambda a, k: _product(a[0], a[1]),
    "aten.addmm": lambda a, k: _product(a[1], a[2]),
    "aten.bmm": lambda a, k: _product(a[0], a[1]),
    "aten.embedding": lambda a, k: fresh((*a[1].shape, a[0].shape[1]), a[0].dtype),
    "aten.gather": lambda a, k: fresh(a[2].shape, a[0].dtype),
    "aten.nll_loss_forward": lambda a, k: [
        fresh((a[1].shape if a[3] == 0 else ()), a[0].dtype), fresh((), a[0].dtype)],
    "aten.nll_loss_backward": lambda a, k: fresh(a[1].shape, a[1].dtype),
    "aten.sum": _sum, "aten.amax": _amax, "aten.linalg_vector_norm": _norm,
    "aten.any": lambda a, k: fresh((), torch.bool) if len(a) == 1 else None,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.cat": _cat, "aten.stack": _stack, "aten.clone": _clone, "aten._to_copy": _to_copy,
    "aten.empty": _sized, "aten.zeros": _sized, "aten.ones": _sized,
    "aten.new_empty": _new, "aten.new_zeros": _new,
    "aten.full": lambda a, k: fresh(a[0], k["dtype"]) if k.get("dtype") else None,
    "aten._softmax": _softmax, "aten._log_softmax": _softmax,
    "aten._log_softmax_backward_data": lambda a, k: like(a[1], a[3]),
}
RULES |= dict.fromkeys(("aten.empty_like", "aten.zeros_like", "aten.ones_like"), _like)


def results(func: torch._ops.OpOverload, args: Sequence, kwargs: dict
            ) -> Spec | list[Spec] | None:
    """Return the specification of an operation's new result, or None if torch has to be asked.

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
