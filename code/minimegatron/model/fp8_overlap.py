"""Overlap of tensor-parallel communication with GEMMs in FP8.

The schedule is that of tp_overlap.py. Tensors that have one scale travel in FP8, which halves the
bytes; reduce-scatters stay in 16 bits, as they do by default in Transformer Engine
(`initialize_ub`: "AllGather buffers use fp8 when using fp8 recipe"). With one scale per block, the
16-bit tensor travels, and every rank rounds what it receives.

Only --fp8-format with --tp-comm-overlap imports this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minimegatron.model import fp8_ops, ops
from minimegatron.model.fp8_linear import Fp8TensorParallel, multiply, restore, save
from minimegatron.model.tp_overlap import SPLITS, ring_exchange
from minite.functional import Quantizer
from minite.quantize import BLOCK, Quantized

if TYPE_CHECKING:
    from minimegatron.model.linear import GradAccumulator

ROWS = 16  # _scaled_mm's results have a multiple of this many columns


class Fp8TensorParallelWithOverlap(Fp8TensorParallel):
    """How one linear layer in FP8 enters and leaves its region, with sequence parallelism, while
    its collectives overlap its GEMMs."""

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None = None,
                               accumulator: GradAccumulator | None = None) -> torch.Tensor:
        return Fp8GatherLinearWithOverlap.apply(x, weight, bias, accumulator, self)

    def row_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                            accumulator: GradAccumulator | None) -> torch.Tensor:
        y = Fp8LinearReduceScatterWithOverlap.apply(x, weight, accumulator, self)
        return y if bias is None else ops.add_bias(y, bias)


class Fp8GatherLinearWithOverlap(torch.autograd.Function):
    """A column-parallel layer: y_i = all-gather(x) W_i^T + b_i, for this rank's x [s/t, b, in]."""

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator, tp):
        ctx.tp, ctx.weight, ctx.accumulator = tp, weight, accumulator
        out = x.new_empty(x.shape[0] * tp.group.size, *x.shape[1:-1], weight.shape[0])
        rows, rounded = x.reshape(-1, x.shape[-1]), tp.rounded(weight)[0]
        sent = travels(tp, rows, tp.input)
        exchange(tp, sent, tp.input, out.flatten(0, -2), rounded, bias)
        save(ctx, sent if tp.fp8_wgrad else rows)
        return out

    @staticmethod
    def backward(ctx, grad):
        tp, saved = ctx.tp, restore(ctx)
        dy = grad.reshape(-1, grad.shape[-1])
        rows, dy_of_dw = tp.quantize_grad(dy)
        part = bits(saved)
        whole = part.new_empty(part.shape[0] * tp.group.size, part.shape[1])
        gather = tp.group.start_all_gather(whole, part.contiguous())
        dx = scatter = None
        if ctx.needs_input_grad[0]:
            total = multiply(rows, tp.rounded(ctx.weight)[1], grad.dtype)
            total = total.view(-1, *grad.shape[1:-1], total.shape[-1])
            dx = total.new_empty(total.shape[0] // tp.group.size, *total.shape[1:])
            scatter = tp.group.start_reduce_scatter(dx, total)
        gather.wait()
        dw = None
        if ctx.needs_input_grad[1]:
            x = (with_data(saved, whole).t() if isinstance(saved, Quantized) else
                 tp.input(whole.t()) if tp.fp8_wgrad else whole)
            dw = tp.add_weight_grad(ctx.accumulator, dy_of_dw, x, grad.dtype)
        bias_grad = dy.sum(0) if ctx.needs_input_grad[2] else None
        if scatter is not None:
            scatter.wait()
        return dx, dw, bias_grad, None, None


class Fp8LinearReduceScatterWithOverlap(torch.autograd.Function):
    """A row-parallel layer: this rank's s/t positions of y = sum_i x_i W_i^T, for x_i [s, b, in/t].
    """

    @staticmethod
    def forward(ctx, x, weight, accumulator, tp):
        ctx.tp, ctx.weight, ctx.accumulator = tp, weight, accumulator
        rows, saved = tp.quantize_input(x.reshape(-1, x.shape[-1]))
        save(ctx, saved)
        parts, started = [], []
        for columns in split_rows(tp.rounded(weight)[0], SPLITS):
            whole = multiply(rows, columns, x.dtype)
            whole = whole.view(*x.shape[:-1], whole.shape[-1])
            parts.append(whole.new_empty(whole.shape[0] // tp.group.size, *whole.shape[1:]))
            started.append((tp.group.start_reduce_scatter(parts[-1], whole), whole))
        for work, _ in started:  # which keeps the addends until then
            work.wait()
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        tp, saved = ctx.tp, restore(ctx)
        dy = grad.reshape(-1, grad.shape[-1])
        gather = None
        if tp.one_scale and not tp.fp8_wgrad:  # dW needs the 16 bits of dy, and dx its FP8
            whole = dy.new_empty(dy.shape[0] * tp.group.size, dy.shape[1])
            gather = tp.group.start_all_gather(whole, dy.contiguous())
        sent = travels(tp, dy, tp.grad)
        transposed = tp.rounded(ctx.weight)[1]
        dx = grad.new_empty(grad.shape[0] * tp.group.size, *grad.shape[1:-1],
                            transposed.data.shape[0])
        received = exchange(tp, sent, tp.grad, dx.flatten(0, -2), transposed)
        if gather is not None:
            gather.wait()
        elif not tp.fp8_wgrad:
            whole = received
        dw = None
        if ctx.needs_input_grad[1]:
            dy_of_dw = (whole if not tp.fp8_wgrad else
                        received.t() if tp.one_scale else tp.grad(received.t()))
            dw = tp.add_weight_grad(ctx.accumulator, dy_of_dw, saved, grad.dtype)
        return dx, dw, None, None


def travels(tp: Fp8TensorParallel, part: torch.Tensor, quantizer: Quantizer
            ) -> Quantized | torch.Tensor:
    """Return what the other ranks receive of `part` [m, k]: FP8 if the tensor has one scale."""
    return quantizer(part) if tp.one_scale else part


def bits(sent: Quantized | torch.Tensor) -> torch.Tensor:
    """Return the tensor to send: bytes for FP8, because gloo has no float8."""
    return sent.data.view(torch.uint8) if isinstance(sent, Quantized) else sent


def with_data(one: Quantized, data: torch.Tensor) -> Quantized:
    """Return bytes as a matrix with another one's dtype and scale."""
    return Quantized(data.view(one.data.dtype), one.scale_inv)


def exchange(tp: Fp8TensorParallel, sent: Quantized | torch.Tensor, quantizer: Quantizer,
             out: torch.Tensor, matrix: Quantized, bias: torch.Tensor | None = None
             ) -> Quantized | torch.Tensor:
    """All-gather parts in a ring, and multiply each while the next one travels.

    Args:
        tp: the layer's.
        sent: this rank's part [m, k], as `travels` returns it.
        quantizer: rounds parts that travel in 16 bits.
        out: receives all parts times the transpose of `matrix`, plus `bias`, [t m, n].
        matrix: [n, k].
        bias: [n], or None.

    Returns:
        All parts, [t m, k], as they traveled.
    """
    parts = out.chunk(tp.group.size)

    def multiply_part(index: int, part: torch.Tensor) -> None:
        rows = with_data(sent, part) if isinstance(sent, Quantized) else quantizer(part)
        a_block, b_block = rows.block or (0, 0), matrix.block or (0, 0)
        fp8_ops.fp8_gemm_into(parts[index], rows.data, rows.scale_inv, matrix.data,
                              matrix.scale_inv, a_block[0], b_block[0], a_block[1], bias)

    whole = ring_exchange(bits(sent), tp.group, multiply_part)
    return with_data(sent, whole) if isinstance(sent, Quantized) else whole


def split_rows(matrix: Quantized, count: int) -> list[Quantized]:
    """Split a matrix [n, k] into up to `count` chunks of rows that consist of whole blocks."""
    rows, unit = len(matrix.data), BLOCK if matrix.block else ROWS
    if rows % unit:
        return [matrix]
    size = -(-rows // (count * unit)) * unit
    parts = matrix.data.split(size)
    scales = ([matrix.scale_inv] * len(parts) if matrix.block is None else
              matrix.scale_inv.split(len(matrix.scale_inv) * size // rows))
    return [Quantized(*part, matrix.block) for part in zip(parts, scales, strict=True)]
