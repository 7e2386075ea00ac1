"""The three GEMMs of a linear layer in FP8, and the quantizers that feed them.

A layer with collectives between its GEMMs calls the pieces itself: `Quantizer.pair` once per
tensor, then `gemm` on the matrices and their transposes, in the order of `_Linear`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minite import cpu_gemm, quantize
from minite.quantize import BLOCK, Quantized
from minite.recipes import Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling, Recipe

QuantizedPair = tuple[Quantized, Quantized]


class Quantizer:
    """Quantizes one tensor of a layer by a recipe that needs no amax history.

    Args:
        role: "input", "weight", or "grad".
    """

    def __init__(self, recipe: Recipe, role: str) -> None:
        self.recipe, self.role, self.dtype = recipe, role, recipe.dtype(role)

    def __call__(self, x: Tensor) -> Quantized:
        """Quantize a matrix [m, k] for a GEMM that contracts over k."""
        recipe = self.recipe
        if isinstance(recipe, MXFP8BlockScaling):
            return quantize.quantize_mx(x, self.dtype)
        if isinstance(recipe, Float8BlockScaling):
            block = (BLOCK, BLOCK) if self.role == "weight" else (1, BLOCK)
            return quantize.quantize_blocks(x, self.dtype, block, not recipe.use_f32_scales)
        if isinstance(recipe, Float8CurrentScaling):
            scale = quantize.scale_from_amax(quantize.amax_of(x), self.dtype,
                                             power_of_2=recipe.use_power_2_scales)
            return quantize.quantize_tensor(x, scale, self.dtype)
        raise TypeError(f"{type(recipe).__name__} has an amax history: use LinearState.quantizers")

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
    """Return a @ b^T [m, n] of a [m, k] and b [n, k].

    With one scale per tensor this is `torch._scaled_mm`, whose sums are exact on a CPU (cpu_gemm);
    it has never been run on CUDA here. Blocks are dequantized first, so products are exact if
    scales are powers of two, and otherwise rounded to float32.
    """
    if a.block is None and b.block is None:
        return torch._scaled_mm(a.data, b.data.t(), a.scale_inv, b.scale_inv, out_dtype=dtype)
    return cpu_gemm.matmul(a.dequantize(), b.dequantize().t()).to(dtype)


class _Linear(torch.autograd.Function):
    """x [m, k] and weight [n, k]: y = x w^T, dx = dy w, dw = dy^T x, each over FP8 operands."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, quantizers: Quantizers, weights: QuantizedPair
                ) -> Tensor:
        ctx.quantizer, ctx.transposed_weight = quantizers.grad, weights[1]
        # A weight in FP8 has a gradient in a wider dtype.
        ctx.dtypes = x.dtype, weight.grad_dtype if weight.dtype.itemsize == 1 else weight.dtype
        if not ctx.needs_input_grad[1]:
            return gemm(quantizers.input(x), weights[0], x.dtype)
        matrix, transposed = quantizers.input.pair(x)
        ctx.save_for_backward(transposed.data, transposed.scale_inv)
        ctx.block = transposed.block
        return gemm(matrix, weights[0], x.dtype)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x_dtype, weight_dtype = ctx.dtypes
        dx = dw = None
        if ctx.needs_input_grad[1]:
            matrix, transposed = ctx.quantizer.pair(dy)
            dw = gemm(transposed, Quantized(*ctx.saved_tensors, ctx.block), weight_dtype)
        else:
            matrix = ctx.quantizer(dy)
        if ctx.needs_input_grad[0]:
            dx = gemm(matrix, ctx.transposed_weight, x_dtype)
        return dx, dw, None, None


def fp8_linear(x: Tensor, weight: Tensor, bias: Tensor | None, quantizers: Quantizers,
               weights: QuantizedPair | None = None) -> Tensor:
    """Return x weight^T + bias, with all three GEMMs in FP8.

    Args:
        x: [..., k].
        weight: [n, k].
        bias: [n], or None.
        quantizers: the recipe's quantizers; `LinearState.quantizers` returns those with a history.
        weights: `quantizers.weight.pair(weight)` from an earlier micro-batch of this step, or None.

    Raises:
        ValueError: a dimension is not divisible as FP8 GEMMs require.
    """
    quantizers.input.recipe.check_shape(x, "input")
    quantizers.weight.recipe.check_shape(weight, "weight")
    if weights is None:
        weights = quantizers.weight.pair(weight.detach())
    y = _Linear.apply(x.reshape(-1, x.shape[-1]), weight, quantizers, weights)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.view(*x.shape[:-1], weight.shape[0])
