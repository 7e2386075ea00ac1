"""A linear layer whose three GEMMs run in FP8, with one scale per tensor."""

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


def transposed(matrix):
    """Return the transpose of a quantized matrix, with contiguous rows."""
    data, inverse = matrix
    return data.t().contiguous(), inverse


def multiply(a, b, dtype):
    """Return a @ b.T for two quantized matrices [m, k] and [n, k], accumulated in float32."""
    return torch._scaled_mm(a[0], b[0].t(), a[1], b[1], out_dtype=dtype)


class Multiply(torch.autograd.Function):
    """y = x @ weight.T, with E4M3 in the forward pass and E5M2 gradients."""

    @staticmethod
    def forward(ctx, x, weight, quantized, scales):
        """Return y [tokens, n].

        Args:
            x: [tokens, k].
            weight: [n, k]; the parameter, so that autograd asks for its gradient.
            quantized: the weight, as quantize() returns it.
            scales: as in Linear.
        """
        ctx.scales = scales
        rounded = quantize(x, E4M3, scales[0])
        ctx.save_for_backward(*rounded, *quantized)
        return multiply(rounded, quantized, x.dtype)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and weight, and None for the other two arguments.

        The gradient of the weight is float32, because the trainer adds up those of all micro-batches.
        """
        x, x_inverse, weight, weight_inverse = ctx.saved_tensors
        rounded = quantize(grad, E5M2, ctx.scales[2])
        dx = multiply(rounded, transposed((weight, weight_inverse)), grad.dtype)
        dw = multiply(transposed(rounded), transposed((x, x_inverse)), torch.float32)
        return dx, dw, None, None


class Linear(nn.Linear):
    """nn.Linear with FP8 GEMMs, and the same parameters.

    Attributes:
        kept: the quantized weight of this step.
        scales: the DelayedScale of x, of the weight, and of the gradient of the output; None for
            each with current scaling.
    """

    kept = None
    scales = (None, None, None)

    def forward(self, x, first_micro_batch=True):
        """Return [..., out_features].

        Args:
            x: [..., in_features].
            first_micro_batch: quantize the weight and keep it; otherwise, use the one that was kept.
        """
        if first_micro_batch:
            self.kept = quantize(self.weight, E4M3, self.scales[1])
        y = Multiply.apply(x.flatten(0, -2), self.weight, self.kept, self.scales).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias
