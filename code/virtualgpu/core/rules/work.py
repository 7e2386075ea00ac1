"""The work of an operation's kernels, and the plain ways to count it.

A cost rule maps (arguments, results) to KernelWork. The tensors among them are torch's or Operands:
a rule reads shapes, strides, and dtypes, and calls no operation of torch. Bytes are the memory
traffic of a kernel that reads its operands once and writes its results once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from virtualgpu.core.operand import Operand, moved, tensors

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
          torch.float64: "fp64"}
FULL_ALIGNMENT = 16  # bytes of the widest load; rows aligned to it are read at the full rate


class GemmShape(NamedTuple):
    """A GEMM, or a batch of them: [m, k] x [k, n].

    Attributes:
        dtype: dtype of the operands, as in Card.tflops.
        batch: number of GEMMs.
        m: rows of the result.
        n: columns of the result.
        k: inner dimension.
        aligned: alignment of the matrices' rows (gemm.alignment).
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


class AttentionKernel(NamedTuple):
    """A fused attention kernel.

    Attributes:
        kernel: FLASH, CUDNN, EFFICIENT, or STACK (rules/attention.py).
        backward: whether it computes the gradients.
        width: head dimension of the queries.
        rows: tokens that a query can attend to.
        causal: whether half of them are masked.
    """

    kernel: str
    backward: bool
    width: int
    rows: int
    causal: bool


class KernelWork(NamedTuple):
    """The work of one operation.

    Attributes:
        bytes: bytes read and written.
        kernels: number of launches.
        gemm: the GEMM in it, if any.
        flops: FLOPs of a fused kernel that is not a plain GEMM.
        dtype: dtype of these FLOPs, as in Card.tflops.
        attention: the fused attention kernel that computes them.
        tokens: number of rows that are looked up in an embedding.
    """

    bytes: int
    kernels: int = 1
    gemm: GemmShape | None = None
    flops: int = 0
    dtype: str = ""
    attention: AttentionKernel | None = None
    tokens: int = 0


CostRule = Callable[[Sequence, Sequence[Operand]], KernelWork]


def read_and_write(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of reading every operand and writing every result once."""
    return KernelWork(sum(map(moved, tensors(arguments))) + sum(map(moved, results)))


def write(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of writing every result once."""
    return KernelWork(sum(map(moved, results)))


def two_passes(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of a reduction, whose second, small kernel reduces the first one's partial results."""
    return read_and_write(arguments, results)._replace(kernels=2)


# Operations that launch no kernel.
FREE = frozenset({
    "aten.empty", "aten.empty_like", "aten.new_empty", "aten.empty_strided",
    "aten.new_empty_strided", "aten.detach", "aten.lift_fresh", "aten._unsafe_view",
    "aten._reshape_alias", "aten.alias", "aten.set_", "aten.detach_"})


def is_free(operation: torch._ops.OpOverload) -> bool:
    return operation.is_view or str(operation._overloadpacket) in FREE
