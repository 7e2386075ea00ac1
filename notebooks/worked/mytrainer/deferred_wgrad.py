"""Leave the weight gradients of column-parallel layers to W, with sequence parallelism."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mytrainer.split_backward import SplitStage


class DeferringStage(SplitStage):
    """A SplitStage whose W also computes the weight gradients of deferred_columns."""

    running = None  # the queue of the micro-batch whose B is running

    def __init__(self, module):
        super().__init__(module)
        self.deferred = {}

    def backward(self, key, grad):
        """Run B of a micro-batch, as SplitStage does."""
        DeferringStage.running = self.deferred[key] = []
        return super().backward(key, grad)

    def weight(self, key):
        """Run W of a micro-batch, with the weight gradients that deferred_columns has left to it."""
        super().weight(key)
        with torch.no_grad():
            for region, x, layers, grads in self.deferred.pop(key):
                whole = gather(x, region).flatten(0, -2)
                for layer, grad in zip(layers, grads, strict=True):
                    layer.weight.backward(grad.flatten(0, -2).t() @ whole)


def deferred_columns(region, x, *layers):
    """Enter the region with x [s/t, b, in], and return the output [s, b, out/t] of each layer, in a list or tuple.

    Args:
        region: the t ranks that share the layers: `group`, `rank`, and `size`.
        x: this rank's positions.
        *layers: column-parallel layers without a bias.
    """
    return DeferredColumns.apply(x, region, layers)


def gather(x, region):
    whole = x.new_empty(region.size * x.shape[0], *x.shape[1:])
    dist.all_gather_single(whole, x.contiguous(), group=region.group)
    return whole


class DeferredColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, region, layers):
        ctx.region, ctx.layers = region, layers
        ctx.save_for_backward(x)
        whole = gather(x, region)
        return tuple(F.linear(whole, layer.weight) for layer in layers)

    @staticmethod
    def backward(ctx, *grads):
        (x,), region = ctx.saved_tensors, ctx.region
        DeferringStage.running.append((region, x.detach(), ctx.layers, grads))
        whole = sum(grad @ layer.weight for grad, layer in zip(grads, ctx.layers, strict=True))
        part = torch.empty_like(x)
        dist.reduce_scatter_single(part, whole, group=region.group)
        return part, None, None
