"""Overlap of tensor-parallel communication with the GEMMs of linear layers, in FP8 or 16 bits.

With sequence parallelism, an all-gather or a reduce-scatter precedes or follows the GEMMs of every
linear layer. If both are split into chunks, one chunk travels while another is multiplied
(Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition in Large Deep
Learning Models"). The schedule is Transformer Engine's default one (`initialize_ub`), which
Megatron-LM's --tp-comm-overlap turns on:

- Column-parallel, forward: the all-gather of the input is a ring exchange of t chunks, and each
  chunk is multiplied while the next one travels.
- Column-parallel, backward: the saved input is all-gathered while the input's gradient is computed,
  and that gradient is reduce-scattered while the weight's gradient is computed ("bulk").
- Row-parallel, forward: the output is computed in 4 chunks of columns, and each chunk is
  reduce-scattered while the next one is computed ("pipeline").
- Row-parallel, backward: the all-gather of the output's gradient is a ring exchange of t chunks,
  and each chunk is multiplied into the input's gradient while the next one travels.

As there, tensors with one scale are all-gathered in FP8, and sums are reduce-scattered in 16 bits.
With one scale per block, 16 bits travel, and every rank rounds what it receives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from minite.quantize import BLOCK, Quantized

SPLITS = 4  # chunks of a row-parallel layer's output, as in Transformer Engine
ROWS = 16  # an FP8 GEMM's result has a multiple of this many columns
Operand = Quantized | Tensor


class OverlappedLinear(Protocol):
    """The arithmetic of one linear layer, and the ranks that share it.

    Attributes:
        group: its t ranks, with start_all_gather, start_reduce_scatter, and start_exchange.
        one_scale: whether a tensor has one scale, so that its parts travel in FP8.
        fp8_wgrad: whether the weight's gradient is computed in FP8.
        input: rounds the input [m, k].
        grad: rounds the output's gradient [m, n].
    """

    group: Any
    one_scale: bool
    fp8_wgrad: bool
    input: Callable[[Tensor], Operand]
    grad: Callable[[Tensor], Operand]

    def rounded(self, weight: Tensor) -> tuple[Operand, Operand]:
        """Return the weight [n, k] as the GEMMs read it, and its transpose."""

    def quantize_input(self, x: Tensor) -> tuple[Operand, Operand]:
        """Return the whole input for y = x W^T, and what to save of it for dW = dy^T x."""

    def quantize_grad(self, dy: Tensor) -> tuple[Operand, Operand]:
        """Return the whole dy for dx = dy W, and what dW = dy^T x needs of it."""

    def multiply(self, a: Operand, b: Operand, dtype: torch.dtype) -> Tensor:
        """Return a [m, k] times the transpose of b [n, k]."""

    def multiply_into(self, out: Tensor, a: Operand, b: Operand, bias: Tensor | None) -> None:
        """Write a [m, k] times the transpose of b [n, k], plus a bias [n], into `out`."""

    def add_weight_grad(self, accumulator: Any, grad: Operand, x: Operand, dtype: torch.dtype
                        ) -> Tensor | None:
        """Accumulate dy^T x; without an accumulator, return it."""


class GatherLinear(torch.autograd.Function):
    """A column-parallel layer: y_i = all-gather(x) W_i^T + b_i, for this rank's x [s/t, b, in]."""

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator, layer):
        ctx.layer, ctx.weight, ctx.accumulator = layer, weight, accumulator
        out = x.new_empty(x.shape[0] * layer.group.size, *x.shape[1:-1], weight.shape[0])
        rows = x.reshape(-1, x.shape[-1])
        sent = layer.input(rows) if layer.one_scale else rows
        exchange(layer, sent, layer.input, out.flatten(0, -2), layer.rounded(weight)[0], bias)
        save(ctx, sent if layer.fp8_wgrad else rows)
        return out

    @staticmethod
    def backward(ctx, grad):
        layer, saved = ctx.layer, restore(ctx)
        dy = grad.reshape(-1, grad.shape[-1])
        rows, dy_of_dw = layer.quantize_grad(dy)
        whole, gather = start_all_gather(layer, bits(saved))
        dx = scatter = None
        if ctx.needs_input_grad[0]:
            total = layer.multiply(rows, layer.rounded(ctx.weight)[1], grad.dtype)
            total = total.view(-1, *grad.shape[1:-1], total.shape[-1])
            dx, scatter = start_reduce_scatter(layer, total)
        gather.wait()
        x = (with_data(saved, whole).t() if isinstance(saved, Quantized) else
             layer.input(whole.t()) if layer.fp8_wgrad else whole)
        dw = (layer.add_weight_grad(ctx.accumulator, dy_of_dw, x, grad.dtype)
              if ctx.needs_input_grad[1] else None)
        bias_grad = dy.sum(0) if ctx.needs_input_grad[2] else None
        if scatter is not None:
            scatter.wait()
        return dx, dw, bias_grad, None, None


class LinearReduceScatter(torch.autograd.Function):
    """A row-parallel layer: this rank's s/t positions of y = sum_i x_i W_i^T, for x_i [s, b, in/t].
    """

    @staticmethod
    def forward(ctx, x, weight, accumulator, layer):
        ctx.layer, ctx.weight, ctx.accumulator = layer, weight, accumulator
        rows, saved = layer.quantize_input(x.reshape(-1, x.shape[-1]))
        save(ctx, saved)
        started = []
        for columns in split_rows(layer.rounded(weight)[0], SPLITS):
            whole = layer.multiply(rows, columns, x.dtype)
            whole = whole.view(*x.shape[:-1], whole.shape[-1])
            started.append((*start_reduce_scatter(layer, whole), whole))
        for _, work, _ in started:  # which keeps the addends until then
            work.wait()
        return torch.cat([part for part, _, _ in started], -1)

    @staticmethod
    def backward(ctx, grad):
        layer, saved, gather = ctx.layer, restore(ctx), None
        dy = grad.reshape(-1, grad.shape[-1])
        if layer.one_scale and not layer.fp8_wgrad:  # dW needs the 16 bits of dy, and dx its FP8
            whole, gather = start_all_gather(layer, dy)
        sent = layer.grad(dy) if layer.one_scale else dy
        transposed = layer.rounded(ctx.weight)[1]
        dx = grad.new_empty(grad.shape[0] * layer.group.size, *grad.shape[1:-1],
                            data_of(transposed).shape[0])
        received = exchange(layer, sent, layer.grad, dx.flatten(0, -2), transposed)
        if gather is not None:
            gather.wait()
        elif not layer.fp8_wgrad:
            whole = received
        else:
            whole = received.t() if layer.one_scale else layer.grad(received.t())
        dw = (layer.add_weight_grad(ctx.accumulator, whole, saved, grad.dtype)
              if ctx.needs_input_grad[1] else None)
        return dx, dw, None, None


def exchange(layer: OverlappedLinear, sent: Operand, quantizer: Callable[[Tensor], Operand],
             out: Tensor, matrix: Operand, bias: Tensor | None = None) -> Operand:
    """All-gather parts in a ring, and multiply each rank's part while the next one travels.

    In each of t - 1 steps, a rank sends the part that it received last to the next rank of the
    ring.

    Args:
        sent: this rank's part [m, k], in FP8 if tensors have one scale.
        quantizer: rounds parts that travel in 16 bits.
        out: receives all parts times the transpose of `matrix`, plus `bias`, [t m, n].
        matrix: [n, k].
        bias: [n], or None.

    Returns:
        All parts in the order of the ranks, [t m, k], as they traveled.
    """
    part, group = bits(sent), layer.group
    whole = part.new_empty(part.shape[0] * group.size, part.shape[1])
    parts, results, index = whole.chunk(group.size), out.chunk(group.size), group.index
    parts[index].copy_(part)
    for step in range(group.size):
        previous = (index - 1) % group.size
        works = (group.start_exchange(parts[index], parts[previous])
                 if step < group.size - 1 else ())
        rows = (with_data(sent, parts[index]) if isinstance(sent, Quantized)
                else quantizer(parts[index]))
        layer.multiply_into(results[index], rows, matrix, bias)
        for work in works:
            work.wait()
        index = previous
    return with_data(sent, whole) if isinstance(sent, Quantized) else whole


def start_all_gather(layer: OverlappedLinear, part: Tensor) -> tuple[Tensor, Any]:
    """Start to all-gather parts [m, k]; return what receives them, [t m, k], and the work."""
    whole = part.new_empty(part.shape[0] * layer.group.size, part.shape[1])
    return whole, layer.group.start_all_gather(whole, part.contiguous())


def start_reduce_scatter(layer: OverlappedLinear, whole: Tensor) -> tuple[Tensor, Any]:
    """Start to reduce-scatter addends [n, ..]; return what receives the sum's part, and the work.
    """
    part = whole.new_empty(whole.shape[0] // layer.group.size, *whole.shape[1:])
    return part, layer.group.start_reduce_scatter(part, whole)


def save(ctx: torch.autograd.function.FunctionCtx, x: Operand) -> None:
    """Save a linear layer's input for its backward pass."""
    ctx.block, ctx.is_rounded = getattr(x, "block", None), isinstance(x, Quantized)
    ctx.save_for_backward(*((x.data, x.scale_inv) if ctx.is_rounded else (x,)))


def restore(ctx: torch.autograd.function.FunctionCtx) -> Operand:
    """Return the input that `save` saved."""
    return Quantized(*ctx.saved_tensors, ctx.block) if ctx.is_rounded else ctx.saved_tensors[0]


def data_of(operand: Operand) -> Tensor:
    """Return the matrix, without its scales."""
    return operand.data if isinstance(operand, Quantized) else operand


def bits(sent: Operand) -> Tensor:
    """Return the tensor to send: bytes for FP8, because gloo has no float8."""
    return sent.data.view(torch.uint8) if isinstance(sent, Quantized) else sent


def with_data(one: Quantized, data: Tensor) -> Quantized:
    """Return bytes as a matrix with another one's dtype and scale."""
    return Quantized(data.view(one.data.dtype), one.scale_inv)


def split_rows(matrix: Operand, count: int) -> list[Operand]:
    """Split a matrix [n, k] into up to `count` chunks of rows that consist of whole blocks."""
    if not isinstance(matrix, Quantized):
        return list(matrix.chunk(count))
    rows, unit = len(matrix.data), BLOCK if matrix.block else ROWS
    if rows % unit:
        return [matrix]
    size = -(-rows // (count * unit)) * unit
    parts = matrix.data.split(size)
    scales = ([matrix.scale_inv] * len(parts) if matrix.block is None else
              matrix.scale_inv.split(len(matrix.scale_inv) * size // rows))
    return [Quantized(*part, matrix.block) for part in zip(parts, scales, strict=True)]
