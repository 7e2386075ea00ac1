"""What operations return that move elements: copies, indexing, padding, windows; and convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.replay.dtypes import promoted
from virtualgpu.replay.format import MOST_TENSORS
from virtualgpu.replay.result_rules import (
    LONG,
    Arguments,
    Result,
    axis,
    broadcast,
    expands,
    like,
    mismatched,
    replaced,
    require,
    rule,
    same_dtype,
)

# ---- copies


@rule("_to_copy", "clone")
def _copy(a: Arguments) -> list[Result]:
    return [like(a.self, getattr(a, "dtype", None))]


@rule("copy", "flip", "roll", "rot90", "tril", "triu", "_conj_physical", "lift_fresh_copy")
def _same(a: Arguments) -> list[Result]:
    if a.name == "copy":
        expands(a.src.shape, a.self.shape)
    if a.name == "rot90" and a.k % 2:
        first, second = (axis(dim, a.self.dim()) for dim in a.dims)
        shape = list(a.self.shape)
        shape[first], shape[second] = shape[second], shape[first]
        return [(tuple(shape), a.self.dtype)]
    return [like(a.self)]


@rule("zero", "uniform", "exponential", "random", "geometric", "cauchy", "log_normal",
      "embedding_renorm")
def _self(a: Arguments) -> list[Result]:
    return [like(a.self)]


@rule("cat")
def _cat(a: Arguments) -> list[Result]:
    parts = [item for item in a.tensors if item.shape != (0,)] or a.tensors[:1]
    if not parts:
        raise ValueError("cat: expected at least one tensor")
    first, at = parts[0], axis(a.dim, parts[0].dim())
    for part in parts:
        require(part.dim() == first.dim() > 0
                and replaced(part.shape, at, 0) == replaced(first.shape, at, 0),
                f"cat: sizes of tensors must match except in dimension {at}", first=first,
                other=part)
    return [(replaced(first.shape, at, sum(part.shape[at] for part in parts)),
             promoted(a.tensors))]


@rule("stack")
def _stack(a: Arguments) -> list[Result]:
    if not a.tensors:
        raise ValueError("stack: expected at least one tensor")
    first, at = a.tensors[0], axis(a.dim, a.tensors[0].dim() + 1)
    for part in a.tensors:
        mismatched(part.shape == first.shape, first=first, other=part)
    return [((*first.shape[:at], len(a.tensors), *first.shape[at:]), promoted(a.tensors))]


@rule("repeat")
def _repeat(a: Arguments) -> list[Result]:
    missing = len(a.repeats) - a.self.dim()
    if missing < 0 or min(a.repeats, default=0) < 0:
        raise ValueError(f"repeat of {list(a.self.shape)}: {a.repeats}")
    shape = (*[1] * missing, *a.self.shape)
    return [(tuple(size * times for size, times in zip(shape, a.repeats, strict=True)),
             a.self.dtype)]


def _split(x: Operand, sizes: Sequence[int], dim: int) -> list[Result]:
    at = axis(dim, x.dim())
    require(sum(sizes) == x.shape[at] and min(sizes, default=0) >= 0,
            f"a split of dimension {at} into {list(sizes)[:8]}", tensor=x)
    return [(replaced(x.shape, at, size), x.dtype) for size in sizes]


@rule("split_with_sizes_copy", "unsafe_split_with_sizes")
def _split_with_sizes(a: Arguments) -> list[Result]:
    return _split(a.self, a.split_sizes, a.dim)


@rule("fsdp.split_with_sizes_copy")
def _fsdp_split(a: Arguments) -> list[Result]:
    return _split(a.all_gather_output, a.all_gather_input_split_sizes, a.dim)


@rule("unsafe_split")
def _unsafe_split(a: Arguments) -> list[Result]:
    size = a.self.shape[axis(a.dim, a.self.dim())]
    if a.split_size < 1 or -(-size // a.split_size) > MOST_TENSORS:
        raise ValueError(f"a split of {size} elements into parts of {a.split_size}")
    parts = [min(a.split_size, size - start) for start in range(0, size, a.split_size)]
    return _split(a.self, parts or [0], a.dim)


@rule("_chunk_cat", "fsdp.chunk_cat")
def _chunk_cat(a: Arguments) -> list[Result]:
    if a.num_chunks < 1 or not a.tensors:
        raise ValueError(f"chunk_cat of {len(a.tensors)} tensors in {a.num_chunks} chunks")
    first = a.tensors[0]
    at, columns = axis(a.dim, first.dim()), 0
    for part in a.tensors:
        require(part.dim() > at and part.shape[:at] == first.shape[:at]
                and part.dtype == first.dtype, "chunk_cat", first=first, other=part)
        columns += -(-part.shape[at] // a.num_chunks) * _product(part.shape[at + 1:])
    return [((*first.shape[:at], a.num_chunks, columns), first.dtype)]


@rule("fsdp.all_gather_copy_in")
def _all_gather_copy_in(a: Arguments) -> list[Result]:
    inputs, out = a.all_gather_inputs, a.all_gather_output
    if sum(item.numel() for item in inputs) > a.all_gather_input_numel or len(
            a.inp_split_sizes) != len(inputs):
        raise ValueError("all_gather_copy_in: the shards are larger than the input")
    begin = a.all_gather_input_numel * a.rank
    require(out.dim() == 1 and 0 <= begin <= begin + a.all_gather_input_numel <= out.shape[0],
            "all_gather_copy_in", output=out)
    return [((a.all_gather_input_numel,), out.dtype), like(out)]


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


# ---- indexing


@rule("embedding")
def _embedding(a: Arguments) -> list[Result]:
    require(a.weight.dim() == 2, "expected a matrix", weight=a.weight)
    return [((*a.indices.shape, a.weight.shape[1]), a.weight.dtype)]


@rule("embedding_dense_backward")
def _embedding_backward(a: Arguments) -> list[Result]:
    mismatched(a.grad_output.shape[:-1] == a.indices.shape, grad=a.grad_output, indices=a.indices)
    return [((a.num_weights, a.grad_output.shape[-1]), a.grad_output.dtype)]


@rule("index_select")
def _index_select(a: Arguments) -> list[Result]:
    require(a.index.dim() <= 1, "expected a vector", index=a.index)
    return [(replaced(a.self.shape, a.dim, a.index.numel()), a.self.dtype)]


@rule("gather")
def _gather(a: Arguments) -> list[Result]:
    _index_fits(a.self, a.dim, a.index)
    return [(a.index.shape, a.self.dtype)]


def _index_fits(x: Operand, dim: int, index: Operand, source: Operand | None = None) -> None:
    """Check the index of a gather or a scatter: in the other dimensions, it is within bounds."""
    at = axis(dim, x.dim())
    fits = max(index.dim(), 1) == max(x.dim(), 1) and all(
        size <= held for where, (size, held) in enumerate(zip(index.shape, x.shape, strict=False))
        if where != at)
    if source is not None and index.numel():
        fits = fits and max(source.dim(), 1) == max(index.dim(), 1) and all(
            size <= held for size, held in zip(index.shape, source.shape, strict=False))
    mismatched(fits or index.numel() == 0, tensor=x, index=index)


@rule("scatter", "scatter_add", "scatter_reduce")
def _scatter(a: Arguments) -> list[Result]:
    _index_fits(a.self, a.dim, a.index, getattr(a, "src", None))
    return [like(a.self)]


@rule("index_add", "index_copy", "index_reduce", "index_fill")
def _index_add(a: Arguments) -> list[Result]:
    at = axis(a.dim, a.self.dim())
    require(a.index.dim() <= 1, "expected a vector", index=a.index)
    source = getattr(a, "source", None)
    if source is not None and source.dim():
        mismatched(replaced(source.shape, at, 0) == replaced(a.self.shape, at, 0)
                   and source.shape[at] == a.index.numel(), tensor=a.self, source=source)
    return [like(a.self)]


@rule("index", "_unsafe_index")
def _index(a: Arguments) -> list[Result]:
    return [(_indexed(a.self, a.indices), a.self.dtype)]


def _indexed(x: Operand, indices: Sequence[Operand | None]) -> tuple[int, ...]:
    """Return the shape of x[indices], for indices that are integers."""
    require(len(indices) <= x.dim(), f"{len(indices)} indices are too many", tensor=x)
    given = [at for at, item in enumerate(indices) if item is not None]
    if not given:
        return x.shape
    shape = broadcast(*(indices[at].shape for at in given))
    kept = [size for at, size in enumerate(x.shape) if at not in given]
    adjacent = given == list(range(given[0], given[-1] + 1))
    before = given[0] if adjacent else 0
    return (*kept[:before], *shape, *kept[before:])


@rule("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(a: Arguments) -> list[Result]:
    masks = (torch.bool, torch.uint8)
    if not any(item is not None and item.dtype in masks for item in a.indices):
        expands(a.values.shape, _indexed(a.self, a.indices))
    return [like(a.self)]


@rule("take")
def _take(a: Arguments) -> list[Result]:
    return [(a.index.shape, a.self.dtype)]


@rule("put", "masked_scatter")
def _put(a: Arguments) -> list[Result]:
    shape = broadcast(a.self.shape, a.mask.shape) if a.name == "masked_scatter" else a.self.shape
    return [(shape, a.self.dtype)]


@rule("nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount",
      "repeat_interleave")
def _by_value(a: Arguments) -> None:
    """Values decide the shapes of these, so a record's word is taken."""


@rule("searchsorted", "bucketize")
def _searchsorted(a: Arguments) -> list[Result]:
    shape = a.self.shape if isinstance(a.self, Operand) else ()
    return [(shape, torch.int32 if a.out_int32 else LONG)]


@rule("histc")
def _histc(a: Arguments) -> list[Result]:
    return [((a.bins,), a.self.dtype)]


@rule("slice_backward", "select_backward", "diagonal_backward", "unfold_backward")
def _into_zeros(a: Arguments) -> list[Result]:
    shape = tuple(a.input_sizes)
    if a.name == "unfold_backward":
        return [(shape, a.grad_in.dtype)]
    if a.name != "diagonal_backward":
        at = axis(a.dim, len(shape))
        part = (*shape[:at], *shape[at + 1:])
        if a.name == "slice_backward":
            part = replaced(shape, at, _sliced(shape[at], a.start, a.end, a.step))
        mismatched(a.grad_output.shape == part, grad=a.grad_output)
    return [(shape, a.grad_output.dtype)]


def _sliced(size: int, start: int, end: int, step: int) -> int:
    """Return the length of x[start:end:step]."""
    if step < 1:
        raise ValueError(f"a slice in steps of {step}")
    first, last = (min(max(at + size if at < 0 else at, 0), size) for at in (start, end))
    return max(-(-(last - first) // step), 0)


@rule("slice_scatter", "select_scatter", "diagonal_scatter")
def _view_scatter(a: Arguments) -> list[Result]:
    return [like(a.self)]


@rule("diag_embed")
def _diag_embed(a: Arguments) -> list[Result]:
    first, second = (axis(dim, a.self.dim() + 1) for dim in (a.dim1, a.dim2))
    size = a.self.shape[-1] + abs(a.offset)
    shape = list(a.self.shape[:-1])
    for at in sorted((first, second)):
        shape.insert(at, size)
    return [(tuple(shape), a.self.dtype)]


@rule("diagonal_copy")
def _diagonal(a: Arguments) -> list[Result]:
    first, second = (axis(dim, a.self.dim()) for dim in (a.dim1, a.dim2))
    rows, columns = a.self.shape[first] + min(a.offset, 0), a.self.shape[second] - max(a.offset, 0)
    kept = [size for at, size in enumerate(a.self.shape) if at not in (first, second)]
    return [((*kept, max(min(rows, columns), 0)), a.self.dtype)]


@rule("unfold_copy")
def _unfold(a: Arguments) -> list[Result]:
    at = axis(a.dimension, a.self.dim())
    if a.step < 1 or not 0 <= a.size <= (a.self.shape[at] if a.self.shape else 1):
        raise ValueError(f"windows of {a.size} in steps of {a.step}")
    if not a.self.shape:
        return [((a.size,), a.self.dtype)]
    windows = (a.self.shape[at] - a.size) // a.step + 1
    return [((*replaced(a.self.shape, at, windows), a.size), a.self.dtype)]


# ---- padding, resampling, convolutions, and pooling


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
        mismatched(a.bias.shape == shape[1:2], bias=a.bias, weight=a.weight)
    return [(shape, a.input.dtype)]


@rule("convolution_backward")
def _convolution_backward(a: Arguments) -> list[Result]:
    shape = _convolved(a.input, a.weight, a)
    same_dtype(a.grad_output, a.input)
    mismatched(a.grad_output.shape == shape, grad=a.grad_output,
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
    mismatched(a.grad_output.shape == _pooled(a.self, a), grad=a.grad_output, input=a.self)
    return [like(a.self)]


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward",
      "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _adaptive_backward(a: Arguments) -> list[Result]:
    return [like(a.self)]


@rule("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(a: Arguments) -> list[Result]:
    dims = a.input.dim() - 2
    mismatched(a.grid.dim() == a.input.dim() and a.grid.shape[-1] == dims
               and a.grid.shape[0] == a.input.shape[0], input=a.input, grid=a.grid)
    return [((*a.input.shape[:2], *a.grid.shape[1:-1]), a.input.dtype)]


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(a: Arguments) -> list[Result]:
    found = [like(a.input), like(a.grid)]
    return [one for one, wanted in zip(found, a.output_mask, strict=True) if wanted]


@rule("im2col")
def _im2col(a: Arguments) -> list[Result]:
    windows = _product([_window(*one) for one in zip(
        a.self.shape[-2:], a.kernel_size, a.stride, a.padding, a.dilation, strict=True)])
    rows = a.self.shape[-3] * _product(a.kernel_size)
    return [((*a.self.shape[:-3], rows, windows), a.self.dtype)]


@rule("col2im")
def _col2im(a: Arguments) -> list[Result]:
    block = _product(a.kernel_size)
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
