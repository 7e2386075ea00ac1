"""Operations that create tensors or move elements: factories, copies, and indexing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from virtualgpu.core.operand import Operand, broadcast_shape, moved, tensors
from virtualgpu.core.rules.returns import (
    LONG,
    MOST_TENSORS,
    Arguments,
    Result,
    axis,
    broadcast,
    expands,
    like,
    matching,
    promoted,
    replaced,
    require,
    returns,
)
from virtualgpu.core.rules.work import CostRule, KernelWork, read_and_write, write

# ---- costs


def copy(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of copy_(target, source)."""
    return KernelWork(moved(arguments[1]) + moved(arguments[0]))


def lookup(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of a lookup, which reads only the elements that it writes, and the indices."""
    indices = sum(map(moved, tensors(arguments[1:])))
    return KernelWork(indices + 2 * sum(map(moved, results)))


def embedding(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of embedding(weight, indices, ..)."""
    indices = arguments[1]
    return lookup(arguments, results)._replace(tokens=indices.numel())


def add_rows(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of index_add_ and scatter_add_(target, dim, index, source)."""
    return KernelWork(3 * moved(arguments[3]) + moved(arguments[2]))


def index_put(copies: bool) -> CostRule:
    """index_put(target, indices, values, accumulate): writes only the indexed elements, and reads
    them first if it accumulates.

    An estimate: accumulating sorts the indices first, which is not counted. The number of elements
    that a mask selects is unknown, so it counts as all of them.

    Args:
        copies: whether the target is copied first, and the copy is written.
    """
    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        target, indices = arguments[:2]
        index_tensors = tensors([indices])
        if any(item.dtype in (torch.bool, torch.uint8) for item in index_tensors):
            return read_and_write(arguments, results)
        indexed = math.prod(broadcast_shape((), *(item.shape for item in index_tensors)))
        rest = math.prod(size for dim, size in enumerate(target.shape)
                         if dim >= len(indices) or indices[dim] is None)
        passes = 2 if len(arguments) > 3 and arguments[3] else 1
        return _partial_write(arguments, passes * indexed * rest, copies)
    return rule


def scatter(copies: bool) -> CostRule:
    """scatter(target, dim, index, source or value): writes only the indexed elements.

    An estimate: as if no two of them shared a cache line.

    Args:
        copies: whether the target is copied first, and the copy is written.
    """
    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        return _partial_write(arguments, arguments[2].numel(), copies)
    return rule


def index_copy(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """index_copy_(target, dim, index, source): writes only the indexed elements."""
    return _partial_write(arguments, arguments[3].numel(), copies=False)


def _partial_write(arguments: Sequence, elements: int, copies: bool) -> KernelWork:
    """Cost of writing some elements of a tensor.

    Args:
        arguments: the tensor, then the other operands, which are read.
        elements: number of its elements that are read or written.
        copies: whether all of it is copied first.
    """
    target, *others = arguments
    return KernelWork(elements * target.element_size() + sum(map(moved, tensors(others)))
                      + 2 * copies * moved(target), kernels=1 + copies)


def into_zeros(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of zeroing the result and copying the first argument into a part of it, as
    slice_backward (ATen/native/TensorShape.cpp) and constant_pad_nd (ATen/native/PadNd.cpp) do."""
    return KernelWork(2 * moved(arguments[0]) + sum(map(moved, results)), kernels=2)


COSTS: dict[str, CostRule] = {
    "aten.copy_": copy,
    "aten.embedding": embedding, "aten.index_select": lookup, "aten.gather": lookup,
    "aten.index": lookup,
    "aten.embedding_dense_backward": lambda a, r: KernelWork(2 * moved(a[0]) + sum(map(moved, r))),
    "aten.index_add_": add_rows, "aten.scatter_add_": add_rows,
    "aten.scatter": scatter(True), "aten.scatter_": scatter(False),
    "aten.index_copy_": index_copy,
    "aten.index_put": index_put(True), "aten.index_put_": index_put(False),
    # The rank's shards are copied into its part of the all-gather's output.
    "fsdp.all_gather_copy_in": lambda a, r: KernelWork(2 * sum(map(moved, a[0]))),
    **dict.fromkeys((
        "aten.slice_backward", "aten.select_backward", "aten.diagonal_backward",
        "aten.unfold_backward", "aten.constant_pad_nd"), into_zeros),
    **dict.fromkeys((
        "aten._to_copy", "aten.clone", "aten.cat", "aten.stack", "aten.repeat", "aten.flip",
        "aten.roll", "aten.tril", "aten.tril_", "aten.triu", "aten.triu_", "aten._chunk_cat",
        "aten.split_with_sizes_copy", "aten.unfold_copy", "aten.masked_scatter",
        "aten.embedding_renorm_", "aten.multinomial", "fsdp.chunk_cat",
        "fsdp.split_with_sizes_copy"), read_and_write),
    **dict.fromkeys((
        "aten.zero_", "aten.fill_", "aten.full", "aten.zeros", "aten.ones", "aten.zeros_like",
        "aten.ones_like", "aten.full_like", "aten.new_zeros", "aten.new_full", "aten.new_ones",
        "aten.arange", "aten.eye", "aten.linspace", "aten.tril_indices", "aten.triu_indices",
        "aten.scalar_tensor", "aten.normal_", "aten.uniform_", "aten.bernoulli_", "aten.random_",
        "aten.exponential_", "aten.rand", "aten.rand_like", "aten.randn", "aten.randn_like",
        "aten.randint", "aten.randint_like", "aten.randperm"), write),
}


# ---- results of factories and random numbers


@returns("empty", "full", "zeros", "ones", "rand", "randn", "randint", "empty_permuted")
def _factory(a: Arguments) -> list[Result]:
    default = torch.get_default_dtype()
    if a.name == "full" and not isinstance(a.fill_value, float):
        default = {bool: torch.bool, int: LONG}.get(type(a.fill_value), torch.complex64)
    elif a.name == "randint":
        default = LONG
    return [(tuple(a.size), a.dtype or default)]


@returns("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
         "randint_like")
def _like(a: Arguments) -> list[Result]:
    return [like(a.self, a.dtype)]


@returns("new_empty", "new_zeros", "new_ones", "new_full")
def _new(a: Arguments) -> list[Result]:
    return [(tuple(a.size), a.dtype or a.self.dtype)]


@returns("arange", "range")
def _arange(a: Arguments) -> list[Result] | None:
    start, step = getattr(a, "start", 0), getattr(a, "step", 1)
    if any(type(one) is not int for one in (start, a.end, step)):
        return None  # a record does not contain floats
    if step == 0 or step * (a.end - start) < 0:
        raise ValueError(f"no numbers from {start} to {a.end} in steps of {step}")
    count = -(-(a.end - start) // step) if a.name == "arange" else (a.end - start) // step + 1
    return [((count,), a.dtype or (LONG if a.name == "arange" else torch.get_default_dtype()))]


@returns("linspace", "logspace")
def _linspace(a: Arguments) -> list[Result]:
    return [((a.steps,), a.dtype or torch.get_default_dtype())]


@returns("eye")
def _eye(a: Arguments) -> list[Result]:
    return [((a.n, getattr(a, "m", a.n)), a.dtype or torch.get_default_dtype())]


@returns("randperm")
def _randperm(a: Arguments) -> list[Result]:
    return [((a.n,), a.dtype or LONG)]


@returns("scalar_tensor")
def _scalar(a: Arguments) -> list[Result]:
    return [((), a.dtype or torch.get_default_dtype())]


@returns("tril_indices", "triu_indices")
def _indices(a: Arguments) -> list[Result]:
    # The elements of the leading triangle of a [row, col] matrix, counted in closed form.
    rows, columns, offset = a.row, a.col, a.offset
    if min(rows, columns) < 0:
        raise ValueError(f"a matrix of {rows} x {columns}")
    shift = offset if a.name == "tril_indices" else offset - 1
    full = min(max(rows - (columns - shift - 1), 0), rows)  # rows below the diagonal, complete
    first, last = max(-shift, 0), max(min(rows - full, rows), 0)
    partial = max(last - first, 0)
    lower = full * columns + partial * (first + shift + 1 + last + shift) // 2
    return [((2, lower if a.name == "tril_indices" else rows * columns - lower), a.dtype or LONG)]


@returns("normal", "bernoulli", "poisson")
def _random(a: Arguments) -> list[Result]:
    if hasattr(a, "size"):
        return [(tuple(a.size), a.dtype or torch.get_default_dtype())]
    given = [one for one in (getattr(a, "mean", None), getattr(a, "std", None),
                             getattr(a, "self", None)) if isinstance(one, Operand)]
    return [(broadcast(*(one.shape for one in given)), given[0].dtype)]


@returns("multinomial")
def _multinomial(a: Arguments) -> list[Result]:
    return [((*a.self.shape[:-1], a.num_samples), LONG)]


# ---- results of copies


@returns("_to_copy", "clone")
def _copy(a: Arguments) -> list[Result]:
    return [like(a.self, getattr(a, "dtype", None))]


@returns("copy", "flip", "roll", "rot90", "tril", "triu", "_conj_physical", "lift_fresh_copy")
def _same(a: Arguments) -> list[Result]:
    if a.name == "copy":
        expands(a.src.shape, a.self.shape)
    if a.name == "rot90" and a.k % 2:
        first, second = (axis(dim, a.self.dim()) for dim in a.dims)
        shape = list(a.self.shape)
        shape[first], shape[second] = shape[second], shape[first]
        return [(tuple(shape), a.self.dtype)]
    return [like(a.self)]


@returns("zero", "fill", "uniform", "exponential", "random", "geometric", "cauchy", "log_normal",
         "embedding_renorm")
def _self(a: Arguments) -> list[Result]:
    return [like(a.self)]


@returns("cat")
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


@returns("stack")
def _stack(a: Arguments) -> list[Result]:
    if not a.tensors:
        raise ValueError("stack: expected at least one tensor")
    first, at = a.tensors[0], axis(a.dim, a.tensors[0].dim() + 1)
    for part in a.tensors:
        matching(part.shape == first.shape, first=first, other=part)
    return [((*first.shape[:at], len(a.tensors), *first.shape[at:]), promoted(a.tensors))]


@returns("repeat")
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


@returns("split_with_sizes_copy", "unsafe_split_with_sizes")
def _split_with_sizes(a: Arguments) -> list[Result]:
    return _split(a.self, a.split_sizes, a.dim)


@returns("fsdp.split_with_sizes_copy")
def _fsdp_split(a: Arguments) -> list[Result]:
    return _split(a.all_gather_output, a.all_gather_input_split_sizes, a.dim)


@returns("unsafe_split")
def _unsafe_split(a: Arguments) -> list[Result]:
    size = a.self.shape[axis(a.dim, a.self.dim())]
    if a.split_size < 1 or -(-size // a.split_size) > MOST_TENSORS:
        raise ValueError(f"a split of {size} elements into parts of {a.split_size}")
    parts = [min(a.split_size, size - start) for start in range(0, size, a.split_size)]
    return _split(a.self, parts or [0], a.dim)


@returns("_chunk_cat", "fsdp.chunk_cat")
def _chunk_cat(a: Arguments) -> list[Result]:
    if a.num_chunks < 1 or not a.tensors:
        raise ValueError(f"chunk_cat of {len(a.tensors)} tensors in {a.num_chunks} chunks")
    first = a.tensors[0]
    at, columns = axis(a.dim, first.dim()), 0
    for part in a.tensors:
        require(part.dim() > at and part.shape[:at] == first.shape[:at]
                and part.dtype == first.dtype, "chunk_cat", first=first, other=part)
        columns += -(-part.shape[at] // a.num_chunks) * math.prod(part.shape[at + 1:])
    return [((*first.shape[:at], a.num_chunks, columns), first.dtype)]


@returns("fsdp.all_gather_copy_in")
def _all_gather_copy_in(a: Arguments) -> list[Result]:
    inputs, out = a.all_gather_inputs, a.all_gather_output
    if sum(item.numel() for item in inputs) > a.all_gather_input_numel or len(
            a.inp_split_sizes) != len(inputs):
        raise ValueError("all_gather_copy_in: the shards are larger than the input")
    begin = a.all_gather_input_numel * a.rank
    require(out.dim() == 1 and 0 <= begin <= begin + a.all_gather_input_numel <= out.shape[0],
            "all_gather_copy_in", output=out)
    return [((a.all_gather_input_numel,), out.dtype), like(out)]


@returns("constant_pad_nd")
def _pad(a: Arguments) -> list[Result]:
    require(len(a.pad) % 2 == 0 and len(a.pad) // 2 <= a.self.dim(), f"padding {a.pad[:8]}",
            tensor=a.self)
    shape = list(a.self.shape)
    for at in range(len(a.pad) // 2):
        shape[-1 - at] += a.pad[2 * at] + a.pad[2 * at + 1]
    require(min(shape, default=0) >= 0, f"padding {a.pad}", tensor=a.self)
    return [(tuple(shape), a.self.dtype)]


# ---- results of indexing


@returns("embedding")
def _embedding(a: Arguments) -> list[Result]:
    require(a.weight.dim() == 2, "expected a matrix", weight=a.weight)
    return [((*a.indices.shape, a.weight.shape[1]), a.weight.dtype)]


@returns("embedding_dense_backward")
def _embedding_backward(a: Arguments) -> list[Result]:
    matching(a.grad_output.shape[:-1] == a.indices.shape, grad=a.grad_output, indices=a.indices)
    return [((a.num_weights, a.grad_output.shape[-1]), a.grad_output.dtype)]


@returns("index_select")
def _index_select(a: Arguments) -> list[Result]:
    require(a.index.dim() <= 1, "expected a vector", index=a.index)
    return [(replaced(a.self.shape, a.dim, a.index.numel()), a.self.dtype)]


@returns("gather")
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
    matching(fits or index.numel() == 0, tensor=x, index=index)


@returns("scatter", "scatter_add", "scatter_reduce")
def _scatter(a: Arguments) -> list[Result]:
    _index_fits(a.self, a.dim, a.index, getattr(a, "src", None))
    return [like(a.self)]


@returns("index_add", "index_copy", "index_reduce", "index_fill")
def _index_add(a: Arguments) -> list[Result]:
    at = axis(a.dim, a.self.dim())
    require(a.index.dim() <= 1, "expected a vector", index=a.index)
    source = getattr(a, "source", None)
    if source is not None and source.dim():
        matching(replaced(source.shape, at, 0) == replaced(a.self.shape, at, 0)
                 and source.shape[at] == a.index.numel(), tensor=a.self, source=source)
    return [like(a.self)]


@returns("index", "_unsafe_index")
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


@returns("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(a: Arguments) -> list[Result]:
    masks = (torch.bool, torch.uint8)
    if not any(item is not None and item.dtype in masks for item in a.indices):
        expands(a.values.shape, _indexed(a.self, a.indices))
    return [like(a.self)]


@returns("masked_scatter")
def _masked_scatter(a: Arguments) -> list[Result]:
    return [(broadcast(a.self.shape, a.mask.shape), a.self.dtype)]


@returns("nonzero", "masked_select", "bincount", "repeat_interleave")
def _by_value(a: Arguments) -> None:
    """Values decide the shapes of these, so a record's word is taken."""


@returns("slice_backward", "select_backward", "diagonal_backward", "unfold_backward")
def _into_zeros(a: Arguments) -> list[Result]:
    shape = tuple(a.input_sizes)
    if a.name == "unfold_backward":
        return [(shape, a.grad_in.dtype)]
    if a.name != "diagonal_backward":
        at = axis(a.dim, len(shape))
        part = (*shape[:at], *shape[at + 1:])
        if a.name == "slice_backward":
            part = replaced(shape, at, _sliced(shape[at], a.start, a.end, a.step))
        matching(a.grad_output.shape == part, grad=a.grad_output)
    return [(shape, a.grad_output.dtype)]


def _sliced(size: int, start: int, end: int, step: int) -> int:
    """Return the length of x[start:end:step]."""
    if step < 1:
        raise ValueError(f"a slice in steps of {step}")
    first, last = (min(max(at + size if at < 0 else at, 0), size) for at in (start, end))
    return max(-(-(last - first) // step), 0)


@returns("slice_scatter", "select_scatter", "diagonal_scatter")
def _view_scatter(a: Arguments) -> list[Result]:
    return [like(a.self)]


@returns("diag_embed")
def _diag_embed(a: Arguments) -> list[Result]:
    first, second = (axis(dim, a.self.dim() + 1) for dim in (a.dim1, a.dim2))
    size = a.self.shape[-1] + abs(a.offset)
    shape = list(a.self.shape[:-1])
    for at in sorted((first, second)):
        shape.insert(at, size)
    return [(tuple(shape), a.self.dtype)]


@returns("diagonal_copy")
def _diagonal(a: Arguments) -> list[Result]:
    first, second = (axis(dim, a.self.dim()) for dim in (a.dim1, a.dim2))
    rows, columns = a.self.shape[first] + min(a.offset, 0), a.self.shape[second] - max(a.offset, 0)
    kept = [size for at, size in enumerate(a.self.shape) if at not in (first, second)]
    return [((*kept, max(min(rows, columns), 0)), a.self.dtype)]


@returns("unfold_copy")
def _unfold(a: Arguments) -> list[Result]:
    at = axis(a.dimension, a.self.dim())
    if a.step < 1 or not 0 <= a.size <= (a.self.shape[at] if a.self.shape else 1):
        raise ValueError(f"windows of {a.size} in steps of {a.step}")
    if not a.self.shape:
        return [((a.size,), a.self.dtype)]
    windows = (a.self.shape[at] - a.size) // a.step + 1
    return [((*replaced(a.self.shape, at, windows), a.size), a.self.dtype)]
