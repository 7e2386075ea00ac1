"""Sequence parallelism (Korthikanti et al., 2022): outside the region, each rank has s/t positions."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.tensor_parallel import Region


class SequenceRegion(Region):
    """A Region outside of which rank i has the positions s i/t to s (i + 1)/t: x is [s/t, b, h]."""

    splits_sequence = True

    def enter(self, x):
        """Return all positions, [s, b, h], of hidden states x [s/t, b, h]."""
        return Gather.apply(x, self)

    def leave(self, x):
        """Return this rank's positions, [s/t, b, h], of the sum of the ranks' x [s, b, h]."""
        return Scatter.apply(x, self)

    def columns(self, x, *layers):
        """Enter with x [s/t, b, in], and return the output [s, b, out/t] of each column-parallel layer.

        The layers have no bias. Only x is saved for the backward pass, beside the weights.
        """
        return Columns.apply(x, self, *(layer.weight for layer in layers))

    def gather(self, x):
        """Return x [n, ...] of all ranks, [t n, ...]."""
        whole = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        dist.all_gather_single(whole, x.contiguous(), group=self.group)
        return whole

    def scatter(self, x):
        """Return this rank's part, [n, ...], of the sum of the ranks' x [t n, ...]."""
        part = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
        dist.reduce_scatter_single(part, x.contiguous(), group=self.group)
        return part


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region):
        ctx.region = region
        return region.gather(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.region.scatter(grad), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region):
        ctx.region = region
        return region.scatter(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.region.gather(grad), None


class Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region, *weights):
        ctx.region = region
        ctx.save_for_backward(x, *weights)
        whole = region.gather(x)
        return tuple(F.linear(whole, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *grads):
        x, *weights = ctx.saved_tensors
        whole = ctx.region.gather(x)
        x_grad = sum(grad @ weight for grad, weight in zip(grads, weights, strict=True))
        weight_grads = [grad.flatten(0, 1).t() @ whole.flatten(0, 1) for grad in grads]
        return ctx.region.scatter(x_grad), None, *weight_grads
