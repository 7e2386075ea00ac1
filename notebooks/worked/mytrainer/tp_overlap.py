"""Tensor parallelism whose backward all-reduces run behind the weight gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import Region


class OverlapRegion(Region):
    """A Region that computes weight gradients while the input's gradient is all-reduced."""

    def columns(self, x, *layers):
        """Enter with x [s, b, in], and return the output [s, b, out/t] of each column-parallel layer, without a bias."""
        return Columns.apply(x, self.group, *(layer.weight for layer in layers))


class Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, *weights):
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        x_grad = grads[0] @ weights[0]
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            x_grad += grad @ weight
        work = dist.all_reduce(x_grad, group=ctx.group, async_op=True)
        weight_grads = [grad.flatten(0, 1).t() @ x.flatten(0, 1) for grad in grads]
        work.wait()
        return x_grad, None, *weight_grads
