"""The three GEMMs of a linear layer in FP8, and the quantizers that feed them.

A layer with collectives around its GEMMs calls the pieces: `Quantizer.pair` once per tensor, then
`gemm` on the rows' and the columns' version, in the order of `_Linear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from minite.quantize import (
    BLOCK,
    Quantized,
    amax_of,
    quantize_blocks,
    quantize_mx,
    quantize_tensor,
    scale_from_amax,
)
from minite.recipes import Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling, Recipe

Pair = tuple[Quantized, Quantized]


class Quantizer:
    """Quantize one tensor of a layer as a recipe without history says.

    Args:
        role: "input", "weight", or "grad".
    """

    def __init__(self, recipe: Recipe, role: str) -> None:
        self.recipe, self.role, self.dtype = recipe, role, recipe.dtype(role)

    def __call__(self, x: Tensor) -> Quantized:
        """Quantize a matrix whose rows a GEMM contracts."""
        recipe = self.recipe
        if isinstance(recipe, MXFP8BlockScaling):
            return quantize_mx(x, self.dtype)
        if isinstance(recipe, Float8BlockScaling):
            block = (BLOCK, BLOCK) if self.role == "weight" else (1, BLOCK)
            return quantize_blocks(x, self.dtype, block, not recipe.use_f32_scales)
        if isinstance(recipe, Float8CurrentScaling):
            scale = scale_from_amax(amax_of(x), self.dtype, power_of_2=recipe.use_power_2_scales)
            return quantize_tensor(x, scale, self.dtype)
        raise TypeError(f"{type(recipe).__name__} needs a history: use LinearState.quantizers")

    def observe(self, x: Tensor) -> None:
        """Record the amax of a tensor that stays unquantized; without history, nothing to do."""

    def pair(self, x: Tensor) -> Pair:
        """Quantize a matrix [rows, columns] for a GEMM over its columns, and one over its rows.

        Returns:
            the matrix and its transpose. One scale per tensor or square block suits both; 1xN
            blocks run along the contraction, so those are two roundings of `x`.
        """
        rows = self(x)
        one_rounding = rows.block is None or rows.block[0] == rows.block[1]
        return rows, rows.t() if one_rounding else self(x.t())


class Quantizers(NamedTuple):
    """The quantizers of a linear layer's operands."""

    input: Quantizer
    weight: Quantizer
    grad: Quantizer

    @classmethod
    def of(cls, recipe: Recipe) -> Quantizers:
        """Return those of a recipe without history."""
        return cls(*(Quantizer(recipe, role) for role in cls._fields))


def gemm(a: Quantized, b: Quantized, dtype: torch.dtype) -> Tensor:
    """Return a @ b^T, accumulated in float32, of shape [m, n] for [m, k] and [n, k].

    With one scale per tensor this is `torch._scaled_mm`, exact products on a CPU; on CUDA, it has
    never been run here. Blocks are dequantized first: their products are exact where scales are
    powers of two, and within float32's rounding otherwise.
    """
    if a.block is None and b.block is None:
        return torch._scaled_mm(a.data, b.data.t(), a.scale_inv, b.scale_inv, out_dtype=dtype)
    with torch.autocast(a.data.device.type, enabled=False):  # it would multiply in 16 bits
        return (a.dequantize() @ b.dequantize().t()).to(dtype)


class _Linear(torch.autograd.Function):
    """x [m, k] and weight [n, k]: y = x w^T, dx = dy w, dw = dy^T x, each over FP8 operands."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, quantizers: Quantizers,
                weights: Pair, fp8_wgrad: bool, after_backward: Callable | None) -> Tensor:
        wgrad = ctx.needs_input_grad[1]
        if wgrad and fp8_wgrad:
            rows, columns = quantizers.input.pair(x)
            kept, ctx.input_block = (columns.data, columns.scale_inv), columns.block
        else:
            rows, kept = quantizers.input(x), (x, None) if wgrad else (None, None)
        transposed = weights[1]
        ctx.save_for_backward(*kept, transposed.data, transposed.scale_inv)
        ctx.weight_block, ctx.grad_quantizer = transposed.block, quantizers.grad
        ctx.fp8_wgrad, ctx.after_backward = fp8_wgrad, after_backward
        w_dtype = weight.grad_dtype if weight.is_leaf else None  # FP8 weights have wider gradients
        ctx.dtypes = x.dtype, w_dtype or weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        y = gemm(rows, weights[0], x.dtype)
        return y if bias is None else y + bias.to(y.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scale_inv, w, w_scale_inv = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        dx = dw = db = None
        if ctx.needs_input_grad[1] and ctx.fp8_wgrad:
            rows, columns = ctx.grad_quantizer.pair(grad)
            dw = gemm(columns, Quantized(x, x_scale_inv, ctx.input_block), w_dtype)
        else:
            rows = ctx.grad_quantizer(grad)
            if ctx.needs_input_grad[1]:
                dw = (grad.t() @ x).to(w_dtype)
        if ctx.needs_input_grad[0]:
            dx = gemm(rows, Quantized(w, w_scale_inv, ctx.weight_block), x_dtype)
        if ctx.needs_input_grad[2]:
            db = grad.sum(0).to(ctx.bias_dtype)
        if ctx.after_backward is not None:
            ctx.after_backward()
        return dx, dw, db, None, None, None, None


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None, quantizers: Quantizers,
               weights: Pair | None = None, fp8_wgrad: bool = True,
               after_backward: Callable[[], None] | None = None) -> Tensor:
    """Return x weight^T + bias, with all three GEMMs in FP8.

    Args:
        x: [..., k].
        weight: [n, k].
        bias: [n], or None.
        quantizers: the recipe's; one with history comes from `LinearState.quantizers`.
        weights: `quantizers.weight.pair(weight)` of an earlier micro-batch of this step.
        fp8_wgrad: False computes the weight's gradient from unrounded operands.
        after_backward: called at the end of the backward pass.

    Raises:
        ValueError: dimensions that FP8 GEMMs cannot read.
    """
    quantizers.input.recipe.check_shape(x, "input")
    quantizers.weight.recipe.check_shape(weight, "weight")
    if weights is None:
        weights = quantizers.weight.pair(weight.detach())
    flat = x.reshape(-1, x.shape[-1])
    y = _Linear.apply(flat, weight, bias, quantizers, weights, fp8_wgrad, after_backward)
    return y.view(*x.shape[:-1], weight.shape[0])
