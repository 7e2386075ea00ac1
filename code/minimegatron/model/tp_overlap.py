"""Overlap of tensor-parallel communication with GEMMs.

With sequence parallelism, an all-gather or a reduce-scatter precedes or follows the GEMMs of every
linear layer. If both are split into chunks, one chunk travels while another is multiplied
(Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition in Large Deep
Learning Models"). This file follows Transformer Engine's default schedule
(`initialize_userbuffers`), which Megatron-LM's flag of the same name turns on:

- Column-parallel, forward: the all-gather of the input is a ring exchange of t chunks, and each
  chunk is multiplied while the next one travels.
- Column-parallel, backward: the saved input is all-gathered while the input's gradient is computed,
  and that gradient is reduce-scattered while the weight's gradient is computed ("bulk").
- Row-parallel, forward: the output is computed in 4 chunks of columns, and each chunk is
  reduce-scattered while the next one is computed ("pipeline").
- Row-parallel, backward: the all-gather of the output's gradient is a ring exchange of t chunks,
  and each chunk is multiplied into the input's gradient while the next one travels.

The FLOPs stay the same, but smaller GEMMs are less efficient. The output layer is column-parallel,
too. Where a zero-bubble schedule delays the weight's gradient, nothing hides the reduce-scatter
before it. Only --tp-comm-overlap imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from minimegatron.model.linear import affine, matmul, to_compute_dtype

if TYPE_CHECKING:
    from minimegatron.grid import Group

SPLITS = 4  # chunks of a row-parallel layer's output, as in Transformer Engine


class GatherLinearWithOverlap(torch.autograd.Function):
    """A column-parallel layer: y_i = all-gather(x) W_i^T + b_i, for this rank's x [s/t, b, in]."""

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator, tp):
        ctx.weight, ctx.accumulator, ctx.tp = weight, accumulator, tp
        ctx.save_for_backward(x)
        out = x.new_empty(x.shape[0] * tp.size, *x.shape[1:-1], weight.shape[0])
        parts = out.chunk(tp.size)
        ring_exchange(x, tp, lambda index, part: product_into(
            parts[index], part, weight.t(), bias))
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,), tp = ctx.saved_tensors, ctx.tp
        whole = x.new_empty(x.shape[0] * tp.size, *x.shape[1:])
        gather = tp.start_all_gather(whole, x.contiguous())
        whole_grad = matmul(grad, ctx.weight).contiguous()
        x_grad = x.new_empty(x.shape)  # contiguous, even if x is not
        scatter = tp.start_reduce_scatter(x_grad, whole_grad)
        flat = grad.reshape(-1, grad.shape[-1])
        gather.wait()
        if ctx.accumulator is not None:
            ctx.accumulator.add_product(flat, whole.flatten(0, -2))
        bias_grad = flat.sum(0) if ctx.needs_input_grad[2] else None
        scatter.wait()
        return x_grad, None, bias_grad, None, None


class LinearReduceScatterWithOverlap(torch.autograd.Function):
    """A row-parallel layer: this rank's s/t positions of y = sum_i x_i W_i^T, for x_i [s, b, in/t].
    """

    @staticmethod
    def forward(ctx, x, weight, accumulator, tp):
        ctx.weight, ctx.accumulator, ctx.tp = weight, accumulator, tp
        ctx.save_for_backward(x)
        parts, started = [], []
        for rows in weight.chunk(SPLITS):
            whole = affine(x, rows, None).contiguous()
            parts.append(whole.new_empty(whole.shape[0] // tp.size, *whole.shape[1:]))
            started.append((tp.start_reduce_scatter(parts[-1], whole), whole))
        for work, _ in started:  # which keeps the addends until then
            work.wait()
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        (x,), tp = ctx.saved_tensors, ctx.tp
        x_grad = x.new_empty(x.shape)
        parts = x_grad.chunk(tp.size)
        whole = ring_exchange(grad, tp, lambda index, part: product_into(
            parts[index], part, ctx.weight))
        if ctx.accumulator is not None:
            ctx.accumulator.add_product(whole.flatten(0, -2), x.flatten(0, -2))
        return x_grad, None, None, None


def ring_exchange(part: torch.Tensor, tp: Group, multiply: Callable[[int, torch.Tensor], None]
                  ) -> torch.Tensor:
    """All-gather `part` [n, ..], and multiply each rank's part while the next one travels.

    In each of t - 1 steps, a rank sends the part that it received last to the next rank of the
    ring. Returns the parts in the order of the ranks, [t n, ..].

    Args:
        part: this rank's part.
        tp: the t ranks.
        multiply: receives the index of a rank and that rank's part, its own first.
    """
    whole = part.new_empty(part.shape[0] * tp.size, *part.shape[1:])
    parts, index = whole.chunk(tp.size), tp.index
    parts[index].copy_(part)
    for step in range(tp.size):
        previous = (index - 1) % tp.size
        works = (tp.start_exchange(parts[index], parts[previous]) if step < tp.size - 1 else ())
        multiply(index, parts[index])
        for work in works:
            work.wait()
        index = previous
    return whole


def product_into(out: torch.Tensor, x: torch.Tensor, matrix: torch.Tensor,
                 bias: torch.Tensor | None = None) -> None:
    """Write x @ matrix + bias into `out` without another copy.

    Args:
        out: contiguous, [.., m].
        x: [.., k].
        matrix: [k, m].
        bias: [m], or None.
    """
    out, x = out.flatten(0, -2), x.flatten(0, -2)
    if to_compute_dtype(x) is not x:
        out.copy_(affine(x, matrix.t(), bias))
    elif bias is None:
        torch.mm(x, matrix, out=out)
    else:
        torch.addmm(bias, x, matrix, out=out)
