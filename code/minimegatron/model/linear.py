"""Linear layers and embedding lookups that accumulate their weight gradients themselves.

Autograd would materialize each micro-batch's weight gradient and add it to `weight.grad`. These
functions hand the gradient's factors to an accumulator (parallel/ddp.py) instead, as Megatron's
`LinearWithGradAccumulationAndAsyncCommunication` does. The accumulator can then multiply them
straight into the gradient buffer, or later, when a zero-bubble schedule asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from minimegatron.parallel.ddp import GradAccumulator


def to_compute_dtype(x: torch.Tensor) -> torch.Tensor:
    """Return x [..] in the dtype that its matmuls are computed in, which may be x itself."""
    return x.float() if x.dtype == torch.float16 and x.device.type == "cpu" else x


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a [.., n, k] @ b [k, m] in the operands' dtype."""
    return (to_compute_dtype(a) @ to_compute_dtype(b)).to(a.dtype)


def affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [.., in] @ weight [out, in]^T + bias [out] in x's dtype."""
    bias = None if bias is None else to_compute_dtype(bias)
    return F.linear(to_compute_dtype(x), to_compute_dtype(weight), bias).to(x.dtype)


class LinearWithGradAccumulation(torch.autograd.Function):
    """y = x W^T + b. The weight gradient is dy^T x, summed over all tokens."""

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator):
        # The weight outlives the backward pass, so it need not be saved as activations are.
        ctx.weight, ctx.accumulator = weight, accumulator
        ctx.save_for_backward(x)
        return affine(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        ctx.accumulator.add_product(flat, x.reshape(-1, x.shape[-1]))
        x_grad = matmul(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        return x_grad, None, flat.sum(0) if ctx.needs_input_grad[2] else None, None


class EmbeddingWithGradAccumulation(torch.autograd.Function):
    """Rows of an embedding matrix. Only the rows that were looked up receive a gradient."""

    @staticmethod
    def forward(ctx, weight, rows, accumulator):
        ctx.accumulator = accumulator
        ctx.save_for_backward(rows)
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        ctx.accumulator.add_rows(rows.reshape(-1), grad.reshape(-1, grad.shape[-1]))
        return None, None, None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
           accumulator: GradAccumulator | None = None) -> torch.Tensor:
    """Map x [.., in] to x W^T + b [.., out], with weight [out, in] and bias [out].

    The accumulator receives the weight gradient; without one, autograd does, unless the weight is
    frozen.
    """
    if accumulator is None:
        return affine(x, weight, bias)
    return LinearWithGradAccumulation.apply(x, weight, bias, accumulator)


def embedding_lookup(weight: torch.Tensor, rows: torch.Tensor,
                     accumulator: GradAccumulator | None = None) -> torch.Tensor:
    """Return rows (int64 [..]) of an embedding matrix [V, h] as [.., h].

    The accumulator receives the weight gradient; without one, autograd does.
    """
    if accumulator is None:
        return F.embedding(rows, weight)
    return EmbeddingWithGradAccumulation.apply(weight, rows, accumulator)
