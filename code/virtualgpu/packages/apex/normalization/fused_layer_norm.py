"""LayerNorm of Apex: one kernel, as in PyTorch, which saves its input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from virtualgpu.packages.refusals import refuse, used

run = torch.ops.aten


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """LayerNorm with a weight and a bias.

    Raises NoValue with memory_efficient, with which Apex saves the output instead.
    """

    @staticmethod
    def forward(ctx, input, weight, bias, normalized_shape, eps, memory_efficient=False):
        used("apex")
        refuse("fused_layer_norm_affine", memory_efficient=memory_efficient or None)
        ctx.shape = list(normalized_shape)
        out, mean, scale = run.native_layer_norm(input, ctx.shape, weight, bias, eps)
        ctx.save_for_backward(input, weight, bias, mean, scale)
        return out

    @staticmethod
    def backward(ctx, grad):
        input, weight, bias, mean, scale = ctx.saved_tensors
        grads = run.native_layer_norm_backward(grad.contiguous(), input, ctx.shape, mean, scale,
                                               weight, bias, [True, True, True])
        return *grads, None, None, None


def fused_layer_norm_affine(input: Tensor, weight: Tensor, bias: Tensor,
                            normalized_shape: Sequence[int], eps: float = 1e-6,
                            memory_efficient: bool = False) -> Tensor:
    return FusedLayerNormAffineFunction.apply(input, weight, bias, normalized_shape, eps,
                                              memory_efficient)
