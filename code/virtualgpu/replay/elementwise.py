"""Results of elementwise operations: the operands' broadcast shape, in a promoted dtype."""

from __future__ import annotations

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.replay.dtypes import COMPLEX, NUMBERS, floating, promoted, real
from virtualgpu.replay.result_rules import Arguments, Result, broadcast, rule


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOOLEAN = _names("""eq ne lt le gt ge isnan isinf isposinf isneginf signbit logical_and logical_or
    logical_xor logical_not""")
FLOATING = _names("""acos acosh angle asin asinh atan atan2 atanh copysign cos cosh deg2rad
    digamma erf erfc erfinv exp exp2 expm1 i0 igamma igammac lgamma log log10 log1p log2 logit
    mvlgamma polygamma rad2deg reciprocal rsqrt sigmoid sin sinc sinh sqrt tan tanh xlogy
    native_dropout_backward""")
# Where other arguments have a say in the shape, but not in the dtype.
DTYPE_OF = {"masked_fill": ("self",), "threshold_backward": ("grad_output", "self"),
            "where": ("self", "other"), "native_dropout_backward": ("grad_output",),
            "log_sigmoid_backward": ("grad_output", "self"),
            "elu_backward": ("grad_output", "self_or_result"), "lerp": ("self", "end"),
            "rrelu_with_noise_backward": ("grad_output", "self")}
NUMBERS_COUNT = ("self", "other", "exponent", "min", "max", "x", "n")  # others are cast
ELEMENTWISE = frozenset(f"aten.{name}" for name in _names("""
    __lshift__ __rshift__ __ilshift__ __irshift__ _conj_physical abs acos acosh add addcdiv addcmul
    angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min complex conj_physical
    copysign cos cosh deg2rad digamma div elu elu_backward eq erf erfc erfinv exp exp2 expm1 floor
    floor_divide fmax fmin fmod frac gcd ge gelu gelu_backward gt hardshrink hardshrink_backward
    hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
    heaviside hypot i0 igamma igammac isinf isnan isneginf isposinf lcm le leaky_relu
    leaky_relu_backward lerp lgamma log log10 log1p log2 log_sigmoid_backward logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor logit logit_backward lt masked_fill maximum
    minimum mish mish_backward mul mvlgamma nan_to_num native_dropout_backward ne neg nextafter
    polar polygamma pow rad2deg reciprocal relu remainder round rrelu_with_noise_backward rsqrt rsub
    sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus
    softplus_backward softshrink softshrink_backward special_airy_ai special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he
    special_i0e special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p
    special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
    special_spherical_bessel_j0 special_xlog1py special_zeta sqrt sub tan tanh tanh_backward
    threshold threshold_backward trunc where xlogy"""))


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


@rule("isin")
def _isin(a: Arguments) -> list[Result]:
    return [(a.elements.shape if isinstance(a.elements, Operand) else (), torch.bool)]


@rule("_prelu_kernel")
def _prelu(a: Arguments) -> list[Result]:
    return [(broadcast(a.self.shape, a.weight.shape), a.self.dtype)]


@rule("fill")
def _fill(a: Arguments) -> list[Result]:
    return [(a.self.shape, a.self.dtype)]


@rule("_masked_scale")
def _masked_scale(a: Arguments) -> list[Result]:
    return [(broadcast(a.self.shape, a.mask.shape), a.self.dtype)]


@rule("frexp")
def _frexp(a: Arguments) -> list[Result]:
    return [(a.self.shape, a.self.dtype), (a.self.shape, torch.int32)]


@rule("ldexp")
def _ldexp(a: Arguments) -> list[Result]:
    power = Operand(a.other.shape, a.other.strides, floating(a.other.dtype))  # 2.0 ** other
    return [(broadcast(a.self.shape, a.other.shape), promoted([a.self, power]))]


@rule("log_sigmoid_forward")
def _log_sigmoid(a: Arguments) -> list[Result]:
    return [(a.self.shape, a.self.dtype)] * 2  # the second is empty on CUDA, but not on meta


@rule("glu")
def _glu(a: Arguments) -> list[Result]:
    at = a.dim % max(a.self.dim(), 1)
    if a.self.shape[at] % 2:
        raise ValueError(f"glu: dimension {a.dim} of {list(a.self.shape)} is odd")
    shape = (*a.self.shape[:at], a.self.shape[at] // 2, *a.self.shape[at + 1:])
    return [(shape, a.self.dtype)]


@rule("glu_backward")
def _glu_backward(a: Arguments) -> list[Result]:
    return [(a.self.shape, a.self.dtype)]
