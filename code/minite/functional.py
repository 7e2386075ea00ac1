"""The three GEMMs of a linear layer in FP8, and the quantizers that feed them.

A layer with collectives between its GEMMs calls the pieces itself: `Quantizer.pair` once per
tensor, then `gemm` on the matrices and their transposes, in the order of `_Linear`.
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

QuantizedPair = tuple[Quantized, Quantized]


class Quantizer:
    """Quantizes one tensor of a layer by a recipe that needs no amax history.

    Args:
        recipe: the recipe.
        role: "input", "weight", or "grad".
    """

    def __init__(self, recipe: Recipe, role: str) -> None:
        self.recipe, self.role, self.dtype = recipe, role, recipe.dtype(role)

    def __call__(self, x: Tensor) -> Quantized:
        """Quantize a matrix [m, k] for a GEMM that contracts over k."""
        recipe = self.recipe
        if isinstance(recipe, MXFP8BlockScaling):
            return quantize_mx(x, self.dtype)
        if isinstance(recipe, Float8BlockScaling):
            block = (BLOCK, BLOCK) if self.role == "weight" else (1, BLOCK)
            return quantize_blocks(x, self.dtype, block, not recipe.use_f32_scales)
        if isinstance(recipe, Float8CurrentScaling):
            scale = scale_from_amax(amax_of(x), self.dtype, power_of_2=recipe.use_power_2_scales)
            return quantize_tensor(x, scale, self.dtype)
        raise TypeError(
            f"{type(recipe).__name__} needs an amax history: use LinearState.quantizers")

    def observe(self, x: Tensor) -> None:
        """Record the amax of a tensor that is not quantized; a no-op without an amax history."""

    def pair(self, x: Tensor) -> QuantizedPair:
        """Quantize a matrix for GEMMs that contract over its columns and over its rows.

        Returns:
            The matrix and its transpose. They have the same values if there is one scale per tensor
            or square block. 1xN blocks follow the contraction, so `x` is then rounded twice.
        """
        matrix = self(x)
        same_values = matrix.block is None or matrix.block[0] == matrix.block[1]
        return matrix, matrix.t() if same_values else self(x.t())


class Quantizers(NamedTuple):
    """The quantizers of a linear layer's operands."""

    input: Quantizer
    weight: Quantizer
    grad: Quantizer

    @classmethod
    def of(cls, recipe: Recipe) -> Quantizers:
        """Return the quantizers of a recipe that needs no amax history."""
        return cls(*(Quantizer(recipe, role) for role in cls._fields))


def gemm(a: Quantized, b: Quantized, dtype: torch.dtype) -> Tensor:
    """Return a @ b^T [m, n] of a [m, k] and b [n, k], accumulated in float32.

    With one scale per tensor this is `torch._scaled_mm`, whose products are exact on a CPU; it has
    never been run on CUDA here. Blocks are dequantized first, so products are exact if scales are
    powers of two, and otherwise rounded to float32.
    """
    if a.block is None and b.block is None:
        return torch._scaled_mm(a.data, b.data.t(), a.scale_inv, b.scale_inv, out_dtype=dtype)
    with torch.autocast(a.data.device.type, enabled=False):  # which would multiply in 16 bits
        return (a.dequantize() @ b.dequantize().t()).to(dtype)


class _Linear(torch.autograd.Function):
    """x [m, k] and weight [n, k]: y = x w^T, dx = dy w, dw = dy^T x, each over FP8 operands."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, quantizers: Quantizers,
                weights: QuantizedPair, fp8_wgrad: bool, after_backward: Callable | None) -> Tensor:
        wgrad = ctx.needs_input_grad[1]
        if wgrad and fp8_wgrad:
            matrix, transposed = quantizers.input.pair(x)
            saved, ctx.input_block = (transposed.data, transposed.scale_inv), transposed.block
        else:
            matrix, saved = quantizers.input(x), (x, None) if wgrad else (None, None)
        transposed_weight = weights[1]
        ctx.save_for_backward(*saved, transposed_weight.data, transposed_weight.scale_inv)
        ctx.weight_block, ctx.grad_quantizer = transposed_weight.block, quantizers.grad
        ctx.fp8_wgrad, ctx.after_backward = fp8_wgrad, after_backward
        w_dtype = weight.grad_dtype if weight.is_leaf else None  # FP8 weights have wider gradients
        ctx.dtypes = x.dtype, w_dtype or weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        y = gemm(matrix, weights[0], x.dtype)
        return y if bias is None else y + bias.to(y.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, x_scale_inv, w, w_scale_inv = ctx.saved_tensors
        x_dtype, w_dtype = ctx.dtypes
        dx = dw = db = None
        if ctx.needs_input_grad[1] and ctx.fp8_wgrad:
            dy, transposed = ctx.grad_quantizer.pair(grad)
            dw = gemm(transposed, Quantized(x, x_scale_inv, ctx.input_block), w_dtype)
        else:
            dy = ctx.grad_quantizer(grad)
            if ctx.needs_input_grad[1]:
                dw = (grad.t() @ x).to(w_dtype)
        if ctx.needs_input_grad[0]:
            dx = gemm(dy, Quantized(w, w_scale_inv, ctx.weight_block), x_dtype)
        if ctx.needs_input_grad[2]:
            db = grad.sum(0).to(ctx.bias_dtype)
        if ctx.after_backward is not None:
            ctx.after_backward()
        return dx, dw, db, None, None, None, None


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None, quantizers: Quantizers,
               weights: QuantizedPair | None = None, fp8_wgrad: bool = True,
               after_backward: Callable[[], None] | None = None) -> Tensor:
    """Return x weight^T + bias, with all three GEMMs in FP8.

    Args:
        x: [..., k].
        weight: [n, k].
        bias: [n], or None.
        quantizers: the recipe's quantizers; `LinearState.quantizers` returns those with a history.
        weights: `quantizers.weight.pair(weight)` from an earlier micro-batch of this step, or None.
        fp8_wgrad: whether the weight's gradient is computed in FP8.
        after_backward: called at the end of the backward pass.

    Raises:
        ValueError: a dimension is not divisible as FP8 GEMMs require.
    """
    quantizers.input.recipe.check_shape(x, "input")
    quantizers.weight.recipe.check_shape(weight, "weight")
    if weights is None:
        weights = quantizers.weight.pair(weight.detach())
    flat = x.reshape(-1, x.shape[-1])
    y = _Linear.apply(flat, weight, bias, quantizers, weights, fp8_wgrad, after_backward)
    return y.view(*x.shape[:-1], weight.shape[0])
