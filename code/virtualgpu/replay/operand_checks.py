"""Check that an operation's operands match, by running it on meta tensors.

Torch's meta kernels check less for attention and convolutions than its CUDA kernels do, so there
are checks for those here, because FLOPs are computed from their shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

from virtualgpu.core.plan import needs_values, nested
from virtualgpu.core.shapes import TensorSpec, spec_of

aten = torch.ops.aten
META = torch.device("meta")
SIZED_BY_NUMBERS = {aten.arange, aten.range}  # a record does not contain floats


def results(func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
            operands: Sequence[torch.Tensor]) -> list[TensorSpec] | None:
    """Return the tensors that an operation creates or writes, or None if torch cannot tell.

    Operations that return a list of tensors, such as a split, are not run, except for `_foreach`
    operations: a few words in a record could request a tensor per element.

    Args:
        func: the operation.
        args: its positional arguments, with tensors on meta.
        kwargs: its keyword arguments.
        operands: all tensors among its arguments.

    Raises:
        Exception: torch's error for operands that do not match.
    """
    check = CHECKS.get(str(func._overloadpacket))
    if check is not None:
        check(*args)
    names = {argument.name for argument in func._schema.arguments}
    if "device" in names:  # else torch would allocate the result in this process's memory
        kwargs = {**kwargs, "device": META}
    elif not operands:
        raise ValueError("the operation has no tensors")
    if not _has_known_shapes(func, args, operands):
        return None
    before = list(map(spec_of, operands))
    try:
        with warnings.catch_warnings(
            ):  # about outputs that torch resizes, which are rejected below
            warnings.simplefilter("ignore")
            out = func(*args, **kwargs)
    except NotImplementedError:  # no meta kernel
        return None
    if list(map(spec_of, operands)) != before:
        raise ValueError("the output tensor and the result have different shapes")
    return list(map(spec_of, nested(out)))


def _has_known_shapes(func: torch._ops.OpOverload, args: Sequence,
                      operands: Sequence[torch.Tensor]) -> bool:
    """Return whether shapes alone decide what an operation returns, and how many tensors."""
    if needs_values(func, operands):
        return False
    if func._overloadpacket in SIZED_BY_NUMBERS and any(isinstance(item, float) for item in args):
        return False
    # A split of one dimension could make a tensor for each of its elements.
    lists = any(isinstance(item.type, torch.ListType) for item in func._schema.returns)
    return not lists or func._overloadpacket.__name__.startswith("_foreach_")


def same_dtype(*operands: torch.Tensor) -> None:
    """Check the dtypes of matrices, which torch's meta kernels do not compare."""
    names = [str(item.dtype).removeprefix("torch.") for item in operands]
    if len(set(names)) > 1:
        raise ValueError(f"a matrix multiplication of different dtypes: {', '.join(names)}")


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object) -> None:
    """Check queries, keys, and values of shape [batch, heads, sequence, width]."""
    batch, heads, _rows, width = query.shape
    match = (key.shape[:3] == value.shape[:3] and key.shape[0] == batch and key.shape[3] == width
            and heads % key.shape[1] == 0)
    _require(match, query=query, key=key, value=value)
    same_dtype(query, key, value)


def attention_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
                       value: torch.Tensor, *_: object) -> None:
    attention(query, key, value)
    _require(grad.shape == (*query.shape[:3], value.shape[3]), grad=grad, query=query, value=value)


def fused_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Check queries, keys, and values of shape [sequence, heads, width]; keys may have fewer heads.
    """
    match = query.dim() == 3 and key.shape == value.shape and query.shape[::2] == key.shape[::2]
    _require(match and query.shape[1] % key.shape[1] == 0, query=query, key=key, value=value)
    same_dtype(query, key, value)


def fused_attention_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
                             value: torch.Tensor, *_: object) -> None:
    fused_attention(query, key, value)
    _require(grad.numel() == query.numel(), grad=grad, query=query)


def convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _bias: object,
                         *options: object) -> None:
    same_dtype(grad, x, weight)
    out = aten.convolution.default(x, weight, None, *options[:6])
    _require(grad.shape == out.shape, grad=grad, output=out)


def _require(match: bool, **operands: torch.Tensor) -> None:
    if not match:
        raise ValueError("mismatched shapes: " + ", ".join(
            f"{name} {list(item.shape)}" for name, item in operands.items()))


CHECKS: dict[str, Callable[..., None]] = {
    "aten.mm": lambda a, b, *_: same_dtype(a, b), "aten.bmm": lambda a, b, *_: same_dtype(a, b),
    "aten.addmm": lambda _addend, a, b, *_: same_dtype(a, b),
    "aten.addmm_": lambda _addend, a, b, *_: same_dtype(a, b),
    "aten.baddbmm": lambda _addend, a, b, *_: same_dtype(a, b),
    "aten.convolution": lambda x, weight, *_: same_dtype(x, weight),
    "aten._scaled_dot_product_flash_attention": attention,
    "aten._scaled_dot_product_flash_attention_backward": attention_backward,
    "aten._scaled_dot_product_efficient_attention": attention,
    "aten._scaled_dot_product_efficient_attention_backward": attention_backward,
    "virtualgpu.flash_attention": fused_attention,
    "virtualgpu.flash_attention_backward": fused_attention_backward,
    "aten.convolution_backward": convolution_backward,
}
