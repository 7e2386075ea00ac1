"""Check that an operation's operands match, by running it on meta tensors.

Torch's meta kernels check less for attention and convolutions than their CUDA kernels do, so those
have checks of their own here: FLOPs are counted from their shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

from virtualgpu.core.plan import needs_values, nested
from virtualgpu.core.shapes import Spec, of

aten = torch.ops.aten
META = torch.device("meta")
SIZED_BY_NUMBERS = {aten.arange, aten.range}  # a record has no floats


def results(func: torch._ops.OpOverload, args: Sequence, kwargs: dict,
            operands: Sequence[torch.Tensor]) -> list[Spec] | None:
    """Return the tensors that an operation makes or changes; None where torch cannot tell.

    What returns a list of tensors, such as a split, is not compared with torch, except for
    `_foreach` operations: a few words in a record could ask for a tensor per element.

    Args:
        func: the operation.
        args: its positional arguments, with tensors on meta.
        kwargs: its keyword arguments.
        operands: all tensors among its arguments.

    Raises whatever torch raises of operands that do not fit together.
    """
    check = CHECKS.get(str(func._overloadpacket))
    if check is not None:
        check(*args)
    names = {one.name for one in func._schema.arguments}
    if "device" in names:  # without one, torch would make the result in this process's memory
        kwargs = {**kwargs, "device": META}
    elif not operands:
        raise ValueError("it has no tensors")
    if not _known(func, args, operands):
        return None
    before = list(map(of, operands))
    try:
        with warnings.catch_warnings():  # of outputs that torch resizes: refused below
            warnings.simplefilter("ignore")
            out = func(*args, **kwargs)
    except NotImplementedError:  # no meta kernel
        return None
    if list(map(of, operands)) != before:
        raise ValueError("the tensor that is written has another shape than the result")
    return list(map(of, nested(out)))


def _known(func: torch._ops.OpOverload, args: Sequence, operands: Sequence[torch.Tensor]) -> bool:
    """Return whether shapes alone decide what an operation returns, and how many tensors."""
    if needs_values(func, operands):
        return False
    if func._overloadpacket in SIZED_BY_NUMBERS and any(isinstance(one, float) for one in args):
        return False
    # A split of one dimension could make a tensor for each of its elements.
    lists = any(isinstance(one.type, torch.ListType) for one in func._schema.returns)
    return not lists or func._overloadpacket.__name__.startswith("_foreach_")


def product(*operands: torch.Tensor) -> None:
    """Check the dtypes of matrices, which torch's meta kernels do not compare."""
    names = [str(item.dtype).removeprefix("torch.") for item in operands]
    if len(set(names)) > 1:
        raise ValueError(f"a matrix multiplication of different dtypes: {', '.join(names)}")


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object) -> None:
    """Check queries, keys, and values of shape [batch, heads, sequence, width]."""
    batch, heads, _rows, width = query.shape
    fits = (key.shape[:3] == value.shape[:3] and key.shape[0] == batch and key.shape[3] == width
            and heads % key.shape[1] == 0)
    _require(fits, query=query, key=key, value=value)
    product(query, key, value)


def attention_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
                       value: torch.Tensor, *_: object) -> None:
    attention(query, key, value)
    _require(grad.shape == (*query.shape[:3], value.shape[3]), grad=grad, query=query, value=value)


def fused_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Check queries, keys, and values of shape [sequence, heads, width]; keys may have fewer heads.
    """
    fits = query.dim() == 3 and key.shape == value.shape and query.shape[::2] == key.shape[::2]
    _require(fits and query.shape[1] % key.shape[1] == 0, query=query, key=key, value=value)
    product(query, key, value)


def fused_attention_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor,
                             value: torch.Tensor, *_: object) -> None:
    fused_attention(query, key, value)
    _require(grad.numel() == query.numel(), grad=grad, query=query)


def convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, _bias: object,
                         *options: object) -> None:
    product(grad, x, weight)
    out = aten.convolution.default(x, weight, None, *options[:6])
    _require(grad.shape == out.shape, grad=grad, output=out)


def _require(fits: bool, **operands: torch.Tensor) -> None:
    if not fits:
        raise ValueError("shapes that do not agree: " + ", ".join(
            f"{name} {list(item.shape)}" for name, item in operands.items()))


CHECKS: dict[str, Callable[..., None]] = {
    "aten.mm": lambda a, b, *_: product(a, b), "aten.bmm": lambda a, b, *_: product(a, b),
    "aten.addmm": lambda _addend, a, b, *_: product(a, b),
    "aten.addmm_": lambda _addend, a, b, *_: product(a, b),
    "aten.baddbmm": lambda _addend, a, b, *_: product(a, b),
    "aten.convolution": lambda x, weight, *_: product(x, weight),
    "aten._scaled_dot_product_flash_attention": attention,
    "aten._scaled_dot_product_flash_attention_backward": attention_backward,
    "aten._scaled_dot_product_efficient_attention": attention,
    "aten._scaled_dot_product_efficient_attention_backward": attention_backward,
    "virtualgpu.flash_attention": fused_attention,
    "virtualgpu.flash_attention_backward": fused_attention_backward,
    "aten.convolution_backward": convolution_backward,
}
