"""Cost rules: the FLOPs, bytes, and kernels of an operation, by its name.

A rule maps (arguments, results) to KernelWork. The tensors among them are torch's or Operands: a
rule reads shapes, strides, and dtypes, and calls no operation of torch. Bytes are the memory
traffic of a kernel that reads its operands once and writes its results once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from virtualgpu.core.attention import STACK, AttentionKernel
from virtualgpu.core.matmul import FULL_ALIGNMENT, alignment
from virtualgpu.core.operand import TENSORS

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
          torch.float64: "fp64"}


class GemmShape(NamedTuple):
    """A GEMM, or a batch of them: [m, k] x [k, n].

    Attributes:
        dtype: dtype of the operands, as in Card.tflops.
        batch: number of GEMMs.
        m: rows of the result.
        n: columns of the result.
        k: inner dimension.
        aligned: alignment of the matrices' rows (matmul.alignment).
    """

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    aligned: int = FULL_ALIGNMENT

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


class KernelWork(NamedTuple):
    """The work of one operation.

    Attributes:
        bytes: bytes read and written.
        kernels: number of launches.
        gemm: the GEMM in it, if any.
        flops: FLOPs of a fused kernel that is not a plain GEMM.
        dtype: dtype of these FLOPs, as in Card.tflops.
        attention: the fused attention kernel that computes them.
        table: shape of an embedding's weight.
        tokens: number of rows that are looked up in it.
    """

    bytes: int
    kernels: int = 1
    gemm: GemmShape | None = None
    flops: int = 0
    dtype: str = ""
    attention: AttentionKernel | None = None
    table: tuple[int, ...] | None = None
    tokens: int = 0


Rule = Callable[[Sequence, Sequence[torch.Tensor]], KernelWork]


def moved(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor that cross the memory bus; expanded elements count once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            count *= size
    return count * tensor.element_size() if tensor.numel() else 0


def tensors(arguments: Sequence) -> list[torch.Tensor]:
    """Return the tensors among the arguments, including those in lists."""
    flat = []
    for argument in arguments:
        if isinstance(argument, TENSORS):
            flat.append(argument)
        elif isinstance(argument, (list, tuple)):
            flat += [item for item in argument if isinstance(item, TENSORS)]
    return flat


def read_and_write(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of reading every operand and writing every result once."""
    return KernelWork(sum(map(moved, tensors(arguments))) + sum(map(moved, results)))


def write(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of writing every result once."""
    return KernelWork(sum(map(moved, results)))


def copy(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of copy_(target, source)."""
    return KernelWork(moved(arguments[1]) + moved(arguments[0]))


def two_passes(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of a reduction, whose second, small kernel reduces the first one's partial results."""
    return read_and_write(arguments, results)._replace(kernels=2)


def lookup(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of a lookup, which reads only the elements that it writes, and the indices."""
    indices = sum(map(moved, tensors(arguments[1:])))
    return KernelWork(indices + 2 * sum(map(moved, results)))


def embedding(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of embedding(weight, indices, ..)."""
    weight, indices = arguments[:2]
    return lookup(arguments, results)._replace(table=tuple(weight.shape), tokens=indices.numel())


def add_rows(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of index_add_ and scatter_add_(target, dim, index, source)."""
    return KernelWork(3 * moved(arguments[3]) + moved(arguments[2]))


def gemm(a: torch.Tensor, b: torch.Tensor, results: Sequence[torch.Tensor],
         addend: torch.Tensor | None = None) -> KernelWork:
    """Cost of a GEMM.

    Args:
        a: operand [.., m, k].
        b: operand [.., k, n].
        results: a list with only the result.
        addend: tensor that the same kernel adds, or None.
    """
    *batch, m, k = a.shape
    shape = GemmShape(DTYPES.get(a.dtype, "fp32"), batch[0] if batch else 1, m, b.shape[-1], k,
                      alignment(*map(row_bytes, (a, b, results[0]))))
    size = moved(a) + moved(b) + moved(results[0]) + (0 if addend is None else moved(addend))
    return KernelWork(size, gemm=shape)


def row_bytes(matrix: torch.Tensor) -> int:
    """Return the stride between rows in bytes, or between columns if these are contiguous.

    It is 0 for a single row or column.
    """
    return matrix.element_size() * math.gcd(*(
        step for size, step in zip(matrix.shape, matrix.stride(), strict=True)
        if size > 1 and step > 1))


def attention_work(arguments: Sequence, results: Sequence[torch.Tensor], gemms: int
                   ) -> KernelWork:
    """Cost of fused causal attention over [s, heads, d], which computes half of each GEMM.

    Args:
        arguments: operands, of which the first has the queries' shape.
        results: tensors that it returns.
        gemms: number of GEMMs: 2 forward, 5 backward.
    """
    s, heads, width = arguments[0].shape
    plain = read_and_write(arguments, results)
    return plain._replace(flops=gemms * heads * s * s * width,
                          dtype=DTYPES.get(arguments[0].dtype, "fp32"),
                          attention=AttentionKernel(STACK, gemms > 2, width, s, True))


def masked_softmax(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of a masked softmax: one kernel in 16 bits. In fp32, where Megatron-LM of 2021 has no
    such kernel, masking is a separate pass."""
    plain = read_and_write(arguments, results)
    if arguments[0].dtype != torch.float32:
        return plain
    return KernelWork(2 * plain.bytes, kernels=2)


RULES: dict[str, Rule] = {
    "aten.mm": lambda a, r: gemm(a[0], a[1], r),
    "aten.bmm": lambda a, r: gemm(a[0], a[1], r),
    "aten.addmm": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "aten.addmm_": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "aten.baddbmm": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "virtualgpu.masked_softmax": masked_softmax,
    "virtualgpu.masked_softmax_backward": masked_softmax,
    "virtualgpu.flash_attention": lambda a, r: attention_work(a, r, 2),
    "virtualgpu.flash_attention_backward": lambda a, r: attention_work(a, r, 5),
    # Reads all four buffers, and writes all but the gradients.
    "virtualgpu.adamw": lambda a, r: KernelWork(
        sum(map(moved, a)) + sum(moved(a[i]) for i in (0, 2, 3))),
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
    "virtualgpu.dropout", "virtualgpu.dropout_backward", "virtualgpu.dropout_add",
    "virtualgpu.squared_relu", "virtualgpu.squared_relu_backward", "virtualgpu.swiglu",
    "virtualgpu.swiglu_backward", "virtualgpu.rotary"), read_and_write)
RULES |= dict.fromkeys((
    "aten.zero_", "aten.fill_", "aten.full", "aten.zeros", "aten.ones", "aten.zeros_like",
    "aten.ones_like", "aten.full_like", "aten.new_zeros", "aten.new_full", "aten.new_ones",
    "aten.arange", "aten.normal_", "aten.uniform_", "aten.scalar_tensor"), write)
# Operations that launch no kernel.
FREE = frozenset({
    "aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided",
    "aten.new_empty_strided", "aten.detach", "aten.lift_fresh", "aten._unsafe_view",
    "aten._reshape_alias", "aten.alias", "aten.set_", "aten.detach_"})


def is_free(operation: torch._ops.OpOverload) -> bool:
    return operation.is_view or str(operation._overloadpacket) in FREE
