"""Elementwise operations: the operands' broadcast shape in a promoted dtype, at the cost of their
memory traffic. Among them are Megatron-LM's fused kernels (core/kernels.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from virtualgpu.core.operand import Operand, moved
from virtualgpu.core.rules.returns import (
    COMPLEX,
    NUMBERS,
    Arguments,
    Result,
    broadcast,
    floating,
    like,
    promoted,
    real,
    require,
    returns,
)
from virtualgpu.core.rules.work import CostRule, KernelWork, read_and_write

# ---- costs: operations that torch tags as pointwise need no entry (rules/__init__.py)

# (isin: an estimate for few test elements, which CUDA compares with each element in one kernel.)

COSTS: dict[str, CostRule] = dict.fromkeys((
    "aten.where", "aten.isin", "aten.masked_fill", "aten.masked_fill_", "aten.native_dropout",
    "aten.polar", "aten.complex", "aten._assert_async",
    "aten.native_dropout_backward", "virtualgpu.dropout", "virtualgpu.dropout_backward",
    "virtualgpu.dropout_add", "virtualgpu.squared_relu", "virtualgpu.squared_relu_backward",
    "virtualgpu.swiglu", "virtualgpu.swiglu_backward", "virtualgpu.rotary",
    "virtualgpu.rotate_pairs", "virtualgpu.cast_transpose"), read_and_write)


def rotate_in_place(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of rotate_pairs_(x, cos, sin, ..): reads and writes what it rotates."""
    x, cos, sin = arguments[:3]
    width = 2 * cos.shape[-1]
    rotated = x.numel() // max(x.shape[-1], 1) * width * x.element_size()
    return KernelWork(2 * rotated + moved(cos) + moved(sin))


COSTS["virtualgpu.rotate_pairs_"] = rotate_in_place


# ---- results


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOLEAN = _names("""eq ne lt le gt ge isnan isinf isposinf isneginf signbit logical_and logical_or
    logical_xor logical_not""")
FLOATING = _names("""acos acosh angle asin asinh atan atan2 atanh copysign cos cosh deg2rad
    digamma erf erfc erfinv exp exp2 expm1 i0 igamma igammac lgamma log log10 log1p log2 logit
    mvlgamma polygamma rad2deg reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh xlogy
    native_dropout_backward""")
# Pointwise operations without torch's tag, or with overloads without it.
UNTAGGED = _names("""complex elu_backward floor_divide hardshrink_backward hardsigmoid_backward
    hardswish hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward
    mish_backward native_dropout_backward polar rrelu_with_noise_backward
    softplus_backward softshrink_backward""")
# Where other arguments have a say in the shape, but not in the dtype.
DTYPE_OF = {"masked_fill": ("self",), "threshold_backward": ("grad_output", "self"),
            "where": ("self", "other"), "native_dropout_backward": ("grad_output",),
            "log_sigmoid_backward": ("grad_output", "self"),
            "elu_backward": ("grad_output", "self_or_result"), "lerp": ("self", "end"),
            "rrelu_with_noise_backward": ("grad_output", "self")}
NUMBERS_COUNT = ("self", "other", "exponent", "min", "max", "x", "n")  # others are cast


@cache
def is_elementwise(name: str) -> bool:
    """Return whether an operation such as "aten.add" is elementwise, with one result."""
    namespace, _, base = name.partition(".")
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    functions = [getattr(packet, overload) for overload in packet.overloads()]
    return all([str(item.type) for item in one._schema.returns] == ["Tensor"]
               for one in functions if torch.Tag.pointwise in one.tags) and (
        base.removesuffix("_") in UNTAGGED
        or any(torch.Tag.pointwise in one.tags for one in functions))


def elementwise(a: Arguments) -> list[Result]:
    """Return the result of an elementwise operation."""
    values = {name: value for name, value in vars(a).items() if isinstance(value, Operand) or (
        isinstance(value, NUMBERS) and name in NUMBERS_COUNT)}
    operands = [value for value in values.values() if isinstance(value, Operand)]
    shape = broadcast(*(item.shape for item in operands))
    chosen = DTYPE_OF.get(a.name)
    counted = [value for name, value in values.items() if not chosen or name in chosen]
    return [(shape, _dtype(a, promoted(counted)))]


def _dtype(a: Arguments, dtype: torch.dtype) -> torch.dtype:
    name = a.name
    if name in BOOLEAN:
        return torch.bool
    if name in FLOATING or name.startswith("special_"):
        dtype = floating(dtype)
    if name == "div":
        return dtype if getattr(a, "rounding_mode", None) else floating(dtype)
    if dtype is torch.bool and name in ("pow", "hardshrink", "threshold_backward"):
        return torch.int64
    if name in ("abs", "angle"):
        return real(dtype)
    if name in ("complex", "polar"):
        return COMPLEX[dtype]
    return dtype


@returns("frexp")
def _frexp(a: Arguments) -> list[Result]:
    return [like(a.self), like(a.self, torch.int32)]


@returns("ldexp")
def _ldexp(a: Arguments) -> list[Result]:
    power = Operand(a.other.shape, a.other.strides, floating(a.other.dtype))  # 2.0 ** other
    return [(broadcast(a.self.shape, a.other.shape), promoted([a.self, power]))]


@returns("bucketize", "searchsorted")
def _places(a: Arguments) -> list[Result]:
    """The bucket index of each element."""
    shape = a.self.shape if isinstance(a.self, Operand) else ()
    return [(shape, torch.int32 if a.out_int32 else torch.int64)]


@returns("_prelu_kernel")
def _prelu(a: Arguments) -> list[Result]:
    return [(broadcast(a.self.shape, a.weight.shape), a.self.dtype)]


@returns("log_sigmoid_forward")
def _log_sigmoid(a: Arguments) -> list[Result]:
    return [(a.self.shape, a.self.dtype)] * 2  # the second is empty on CUDA, but not on meta


@returns("glu")
def _glu(a: Arguments) -> list[Result]:
    at = a.dim % max(a.self.dim(), 1)
    if a.self.shape[at] % 2:
        raise ValueError(f"glu: dimension {a.dim} of {list(a.self.shape)} is odd")
    shape = (*a.self.shape[:at], a.self.shape[at] // 2, *a.self.shape[at + 1:])
    return [(shape, a.self.dtype)]


@returns("glu_backward", "rrelu_with_noise")
def _glu_backward(a: Arguments) -> list[Result]:
    return [(a.self.shape, a.self.dtype)]


@returns("native_dropout")
def _dropout(a: Arguments) -> list[Result]:
    return [like(a.input), like(a.input, torch.bool)]


@returns("virtualgpu.masked_softmax", "virtualgpu.squared_relu", "virtualgpu.rotary",
         "virtualgpu.dropout", "virtualgpu.dropout_add", "virtualgpu.squared_relu_backward",
         "virtualgpu.swiglu_backward", "virtualgpu.dropout_backward")
def _fused(a: Arguments) -> list[Result]:
    shown = {"dropout_add": "residual", "dropout_backward": "grad"}.get(a.name)
    return [like(getattr(a, shown or ("x" if hasattr(a, "x") else "scores")))]


@returns("virtualgpu.swiglu")
def _swiglu(a: Arguments) -> list[Result]:
    return [((*a.x.shape[:-1], a.x.shape[-1] // 2), a.x.dtype)]


@returns("virtualgpu.rotate_pairs")
def _rotate_pairs(a: Arguments) -> list[Result]:
    require(a.x.dim() >= 3 and a.cos.shape == a.sin.shape
            and 2 * a.cos.shape[-1] <= a.x.shape[-1], "rotary embedding", x=a.x, cos=a.cos)
    return [like(a.x)]


@returns("virtualgpu.cast_transpose")
def _cast_transpose(a: Arguments) -> list[Result]:
    require(a.x.dim() == 2, "expected a matrix", x=a.x)
    return [like(a.x, a.dtype), (a.x.shape[::-1], a.dtype)]
