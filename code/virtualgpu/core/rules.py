"""What an operation costs: FLOPs, bytes and kernels, by its name.

A rule maps (arguments, results) to Work. Bytes are those that a kernel must move between memory and
the chip once: what it reads and what it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from virtualgpu.core.matmul import WIDEST, alignment

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
          torch.float64: "fp64"}


class Product(NamedTuple):
    """`batch` matrix products [m, k] x [k, n] of this type; aligned: matmul.alignment of them."""

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    aligned: int = WIDEST

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


class Work(NamedTuple):
    """bytes: read and written. kernels: launches. product: the matrix product in it, if any.
    flops: of a fused kernel that is no plain product, with their dtype. table, tokens: the shape of
    an embedding's weight, and how many rows are looked up."""

    bytes: int
    kernels: int = 1
    product: Product | None = None
    flops: int = 0
    dtype: str = ""
    table: tuple[int, ...] | None = None
    tokens: int = 0


Rule = Callable[[Sequence, Sequence[torch.Tensor]], Work]


def moved(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; what is expanded is read from the chip's cache again."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            count *= size
    return count * tensor.element_size() if tensor.numel() else 0


def tensors(arguments: Sequence) -> list[torch.Tensor]:
    found = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found += [item for item in argument if isinstance(item, torch.Tensor)]
    return found


def read_and_write(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """Every operand is read once, every result written once."""
    return Work(sum(map(moved, tensors(arguments))) + sum(map(moved, results)))


def write(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    return Work(sum(map(moved, results)))


def copy(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """copy_(target, source)."""
    return Work(moved(arguments[1]) + moved(arguments[0]))


def two_passes(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """A second small kernel reduces what the first one's blocks left."""
    return read_and_write(arguments, results)._replace(kernels=2)


def lookup(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """Of the table, only the elements that the indices name are read: as many as are written."""
    indices = sum(map(moved, tensors(arguments[1:])))
    return Work(indices + 2 * sum(map(moved, results)))


def embedding(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """embedding(weight, indices, ...)."""
    weight, indices = arguments[:2]
    return lookup(arguments, results)._replace(table=tuple(weight.shape), tokens=indices.numel())


def add_rows(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """index_add_(target, dim, index, source), scatter_add_(target, dim, index, source)."""
    return Work(3 * moved(arguments[3]) + moved(arguments[2]))


def product(a: torch.Tensor, b: torch.Tensor, results: Sequence[torch.Tensor],
            addend: torch.Tensor | None = None) -> Work:
    """a [.., m, k] @ b [.., k, n]."""
    *batch, m, k = a.shape
    shape = Product(DTYPES.get(a.dtype, "fp32"), batch[0] if batch else 1, m, b.shape[-1], k,
                    alignment(*map(row_bytes, (a, b, results[0]))))
    size = moved(a) + moved(b) + moved(results[0]) + (0 if addend is None else moved(addend))
    return Work(size, product=shape)


def row_bytes(matrix: torch.Tensor) -> int:
    """Return the bytes from one row to the next, or from one column to the next if these are
    contiguous; a single row or column has none."""
    return matrix.element_size() * math.gcd(*(
        step for size, step in zip(matrix.shape, matrix.stride(), strict=True)
        if size > 1 and step > 1))


def attention_work(arguments: Sequence, results: Sequence[torch.Tensor], products: int) -> Work:
    """Causal attention over [s, heads, d]: so many products, half of each."""
    s, heads, width = arguments[0].shape
    plain = read_and_write(arguments, results)
    return plain._replace(flops=products * heads * s * s * width,
                          dtype=DTYPES.get(arguments[0].dtype, "fp32"))


def masked_softmax(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """In 16 bits one kernel scales, masks and normalizes. In fp32 there was none in 2021: the mask
    is a pass of its own."""
    plain = read_and_write(arguments, results)
    if arguments[0].dtype != torch.float32:
        return plain
    return Work(2 * plain.bytes, kernels=2)


RULES: dict[str, Rule] = {
    "aten.mm": lambda a, r: product(a[0], a[1], r),
    "aten.bmm": lambda a, r: product(a[0], a[1], r),
    "aten.addmm": lambda a, r: product(a[1], a[2], r, a[0]),
    "aten.addmm_": lambda a, r: product(a[1], a[2], r, a[0]),
    "aten.baddbmm": lambda a, r: product(a[1], a[2], r, a[0]),
    "virtualgpu.masked_softmax": masked_softmax,
    "virtualgpu.masked_softmax_backward": masked_softmax,
    "virtualgpu.flash_attention": lambda a, r: attention_work(a, r, 2),
    "virtualgpu.flash_attention_backward": lambda a, r: attention_work(a, r, 5),
    # Weights and moments are read and written.
    "virtualgpu.adamw": lambda a, r: Work(sum(map(moved, a)) + sum(moved(a[i]) for i in (0, 2, 3))),
    "aten.copy_": copy,
    "aten.embedding": embedding, "aten.index_select": lookup, "aten.gather": lookup,
    "aten.index_add_": add_rows, "aten.scatter_add_": add_rows,
    "aten.native_layer_norm_backward": two_passes, "aten.linalg_vector_norm": two_passes,
    "aten.sum": two_passes,
}
RULES |= dict.fromkeys((
    "aten._to_copy", "aten.clone", "aten.cat", "aten.stack", "aten.native_layer_norm",
    "aten._softmax", "aten._softmax_backward_data", "aten._log_softmax",
    "aten._log_softmax_backward_data", "aten.mean", "aten.amax", "aten.any", "aten.max",
    "aten.triu_", "aten.triu", "aten.where", "aten.masked_fill", "aten.masked_fill_",
    "virtualgpu.dropout", "virtualgpu.dropout_backward", "virtualgpu.dropout_add"), read_and_write)
RULES |= dict.fromkeys((
    "aten.zero_", "aten.fill_", "aten.full", "aten.zeros", "aten.ones", "aten.zeros_like",
    "aten.ones_like", "aten.full_like", "aten.new_zeros", "aten.new_full", "aten.new_ones",
    "aten.arange", "aten.normal_", "aten.uniform_", "aten.scalar_tensor"), write)
# No kernel runs: memory is named or looked at in another way.
FREE = frozenset({
    "aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided",
    "aten.new_empty_strided", "aten.detach", "aten.lift_fresh", "aten._unsafe_view",
    "aten._reshape_alias", "aten.alias", "aten.set_", "aten.detach_"})


def is_free(operation: torch._ops.OpOverload) -> bool:
    return operation.is_view or str(operation._overloadpacket) in FREE
