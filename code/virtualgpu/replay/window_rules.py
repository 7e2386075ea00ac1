"""Results of padding, resampling, convolutions, and poolings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from virtualgpu.core.operand import Operand
from virtualgpu.replay.result_rules import (
    LONG,
    Arguments,
    Result,
    like,
    matching,
    require,
    rule,
    same_dtype,
)


@rule("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
      "replication_pad1d", "replication_pad2d", "replication_pad3d")
def _pad(a: Arguments) -> list[Result]:
    pad = a.pad if hasattr(a, "pad") else a.padding
    require(len(pad) % 2 == 0 and len(pad) // 2 <= a.self.dim(), f"padding {pad[:8]}",
            tensor=a.self)
    shape = list(a.self.shape)
    for at in range(len(pad) // 2):
        shape[-1 - at] += pad[2 * at] + pad[2 * at + 1]
    require(min(shape, default=0) >= 0, f"padding {pad}", tensor=a.self)
    return [(tuple(shape), a.self.dtype)]


@rule(*(f"{kind}_pad{dims}d_backward" for kind in ("reflection", "replication")
        for dims in (1, 2, 3)))
def _pad_backward(a: Arguments) -> list[Result]:
    return [like(a.self)]


UPSAMPLE = [f"upsample_{kind}" for kind in (
    "nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")]
UPSAMPLE += [f"_upsample_nearest_exact{dims}d" for dims in (1, 2, 3)]


@rule(*UPSAMPLE, "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _resized(a: Arguments) -> list[Result] | None:
    x = a.self if hasattr(a, "self") else a.input
    if a.output_size is None:
        raise ValueError("expected the output's size")
    dims = len(a.output_size)
    return [((*x.shape[:x.dim() - dims], *a.output_size), x.dtype)]


@rule(*(f"{name}_backward" for name in UPSAMPLE))
def _resized_backward(a: Arguments) -> list[Result]:
    return [(tuple(a.input_size), a.grad_output.dtype)]


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(a: Arguments) -> list[Result]:
    shape = (*a.self.shape[:a.self.dim() - len(a.output_size)], *a.output_size)
    return [(shape, a.self.dtype), (shape, LONG)]


def _window(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool = False
            ) -> int:
    """Return the number of positions of a window, as in a convolution or a pooling."""
    if min(kernel, stride, dilation) < 1 or padding < 0:
        raise ValueError(f"a window of {kernel} in steps of {stride}, padding {padding}, "
                         f"dilation {dilation}")
    rest = size + 2 * padding - dilation * (kernel - 1) - 1
    if rest < 0:
        raise ValueError(f"a window of {kernel} is larger than {size} elements")
    count = (-(-rest // stride) if ceil else rest // stride) + 1
    return count - (ceil and (count - 1) * stride >= size + padding)


def _each(values: Sequence[int], dims: int) -> list[int]:
    """Return one value for each dimension."""
    found = list(values) * (dims if len(values) == 1 else 1)
    if len(found) != dims:
        raise ValueError(f"{list(values)[:8]}: expected {dims} numbers")
    return found


def _convolved(x: Operand, weight: Operand, a: Arguments) -> tuple[int, ...]:
    """Return the output's shape."""
    dims = x.dim() - 2
    require(dims > 0 and weight.dim() == x.dim(), "a convolution", input=x, weight=weight)
    options = [_each(values, dims) for values in (a.stride, a.padding, a.dilation,
                                                  a.output_padding if a.transposed else [0])]
    sizes = []
    given, out = (weight.shape[0], weight.shape[1] * a.groups) if a.transposed else (
        weight.shape[1] * a.groups, weight.shape[0])
    require(a.groups >= 1 and given == x.shape[1] and out % a.groups == 0,
            f"a convolution in {a.groups} groups: another number of channels", input=x,
            weight=weight)
    for size, kernel, stride, padding, dilation, extra in zip(
            x.shape[2:], weight.shape[2:], *options, strict=True):
        if a.transposed:
            _window(dilation * kernel, kernel, stride, padding, dilation)  # valid numbers
            size = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
            require(size > 0 <= extra, "an empty convolution", input=x, weight=weight)
            sizes.append(size)
        else:
            sizes.append(_window(size, kernel, stride, padding, dilation))
    same_dtype(x, weight)
    return (x.shape[0], out, *sizes)


@rule("convolution")
def _convolution(a: Arguments) -> list[Result]:
    shape = _convolved(a.input, a.weight, a)
    if a.bias is not None:
        matching(a.bias.shape == shape[1:2], bias=a.bias, weight=a.weight)
    return [(shape, a.input.dtype)]


@rule("convolution_backward")
def _convolution_backward(a: Arguments) -> list[Result]:
    shape = _convolved(a.input, a.weight, a)
    same_dtype(a.grad_output, a.input)
    matching(a.grad_output.shape == shape, grad=a.grad_output,
               output=Operand(shape, (), a.input.dtype))
    found = [like(a.input), like(a.weight), (shape[1:2], a.grad_output.dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=True) if wanted]


def _pooled(x: Operand, a: Arguments) -> tuple[int, ...]:
    dims = 3 if "3d" in a.name else 2
    require(x.dim() in (dims + 1, dims + 2), "a pooling", input=x)
    kernel, padding, dilation = (_each(values, dims) for values in (
        a.kernel_size, a.padding, getattr(a, "dilation", [1])))
    stride = _each(a.stride, dims) if a.stride else kernel
    windows = zip(x.shape[x.dim() - dims:], kernel, stride, padding, dilation, strict=True)
    return (*x.shape[:x.dim() - dims], *(_window(*window, a.ceil_mode) for window in windows))


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d")
def _pool(a: Arguments) -> list[Result]:
    shape = _pooled(a.self, a)
    return [(shape, a.self.dtype), (shape, LONG)][:2 if a.name.startswith("max") else 1]


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
      "avg_pool2d_backward", "avg_pool3d_backward")
def _pool_backward(a: Arguments) -> list[Result]:
    matching(a.grad_output.shape == _pooled(a.self, a), grad=a.grad_output, input=a.self)
    return [like(a.self)]


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
      "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_backward(a: Arguments) -> list[Result]:
    return [like(a.self)]


@rule("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(a: Arguments) -> list[Result]:
    dims = a.input.dim() - 2
    matching(a.grid.dim() == a.input.dim() and a.grid.shape[-1] == dims
               and a.grid.shape[0] == a.input.shape[0], input=a.input, grid=a.grid)
    return [((*a.input.shape[:2], *a.grid.shape[1:-1]), a.input.dtype)]


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(a: Arguments) -> list[Result]:
    found = [like(a.input), like(a.grid)]
    return [one for one, wanted in zip(found, a.output_mask, strict=True) if wanted]


@rule("im2col")
def _im2col(a: Arguments) -> list[Result]:
    windows = math.prod([_window(*one) for one in zip(
        a.self.shape[-2:], a.kernel_size, a.stride, a.padding, a.dilation, strict=True)])
    rows = a.self.shape[-3] * math.prod(a.kernel_size)
    return [((*a.self.shape[:-3], rows, windows), a.self.dtype)]


@rule("col2im")
def _col2im(a: Arguments) -> list[Result]:
    block = math.prod(a.kernel_size)
    require(a.self.dim() >= 2 and block > 0 and a.self.shape[-2] % block == 0, "col2im", x=a.self)
    return [((*a.self.shape[:-2], a.self.shape[-2] // block, *a.output_size), a.self.dtype)]


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def _shuffle(a: Arguments) -> list[Result]:
    if a.name == "channel_shuffle":
        return [like(a.self)]
    *batch, channels, height, width = a.self.shape
    up = a.name == "pixel_shuffle"
    factor = a.upscale_factor if up else a.downscale_factor
    divided = (channels % factor**2 if up else height % factor + width % factor) if (
        0 < factor < 2**20) else 1
    require(divided == 0, f"a shuffle by {factor}", x=a.self)
    shape = (channels // factor**2, height * factor, width * factor) if up else (
        channels * factor**2, height // factor, width // factor)
    return [((*batch, *shape), a.self.dtype)]
