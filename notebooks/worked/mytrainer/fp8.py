"""A linear layer whose three GEMMs run in FP8, with the scales of a recipe."""

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(x, dtype, delayed=None):
    """Round a tensor to FP8, with a power-of-two scale from its own amax.

    Args:
        x: the tensor.
        dtype: E4M3 or E5M2.
        delayed: its DelayedScale, whose scale is used instead; None for that of the current amax.

    Returns the float8 tensor, and 1 / scale as a float32 tensor without dimensions. The scale is the
    largest power of two for which nothing saturates, and 1 if x is zero.
    """
    if delayed is not None:
        delayed.record(x.detach())
        scaled, largest = x.detach().float() * delayed.scale, torch.finfo(dtype).max
        inverse = torch.tensor(1 / delayed.scale, device=x.device)
        return scaled.clamp(-largest, largest).to(dtype), inverse
    low, high = torch.aminmax(x.detach())
    amax = torch.maximum(-low, high).float()
    exponent = torch.frexp(torch.finfo(dtype).max / amax).exponent - 1  # exact, where log2 rounds
    scale = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponent), 1.0)
    return (x.detach() * scale.to(x.dtype)).to(dtype), scale.reciprocal()


class PerTensor:
    """The recipe with one scale per tensor.

    A quantized matrix is a tuple of its float8 elements, with contiguous rows, and 1 / scale.

    Attributes:
        delayed: the DelayedScale of each role; empty with current scaling.
    """

    def __init__(self, delayed=None):
        self.delayed = delayed or {}

    def pair(self, x, dtype, role):
        """Quantize a matrix [m, k] for GEMMs that sum over its columns, and for those over its rows.

        Args:
            x: the matrix.
            dtype: E4M3 or E5M2.
            role: "input", "weight", or "grad" (of the output).

        Returns the quantized matrix [m, k], and its quantized transpose [k, m].
        """
        data, inverse = quantize(x, dtype, self.delayed.get(role))
        return (data, inverse), (data.t().contiguous(), inverse)

    def multiply(self, a, b, dtype):
        """Return a @ b.T for two quantized matrices [m, k] and [n, k], accumulated in float32."""
        return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    """y = x @ weight.T, with E4M3 in the forward pass and E5M2 gradients."""

    @staticmethod
    def forward(ctx, x, weight, quantized, recipe):
        """Return y [tokens, n].

        Args:
            x: [tokens, k].
            weight: [n, k]; the parameter, so that autograd asks for its gradient.
            quantized: the weight, as recipe.pair() returns it.
            recipe: as in Linear.
        """
        ctx.recipe = recipe
        rows, columns = recipe.pair(x, E4M3, "input")
        ctx.save_for_backward(*columns, *quantized[1])
        return recipe.multiply(rows, quantized[0], x.dtype)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and weight, and None for the other two arguments.

        The gradient of the weight is float32, because the trainer adds up those of all micro-batches.
        """
        x, x_inverse, *weight = ctx.saved_tensors
        rows, columns = ctx.recipe.pair(grad, E5M2, "grad")
        dx = ctx.recipe.multiply(rows, weight, grad.dtype)
        dw = ctx.recipe.multiply(columns, (x, x_inverse), torch.float32)
        return dx, dw, None, None


class Linear(nn.Linear):
    """nn.Linear with FP8 GEMMs, and the same parameters.

    Attributes:
        kept: the quantized weight of this step.
        recipe: quantizes and multiplies; current scaling, if the trainer does not set another one.
    """

    kept = None
    recipe = PerTensor()

    def forward(self, x, first_micro_batch=True):
        """Return [..., out_features].

        Args:
            x: [..., in_features].
            first_micro_batch: quantize the weight and keep it; otherwise, use the one that was kept.
        """
        if first_micro_batch:
            self.kept = self.recipe.pair(self.weight.detach(), E4M3, "weight")
        y = Multiply.apply(x.flatten(0, -2), self.weight, self.kept, self.recipe).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias
