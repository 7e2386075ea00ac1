"""Split a backward pass in two: B computes the gradient of the input, and W those of the weights."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F

plain_linear = F.linear


@contextmanager
def linear_replaced(function):
    """Let torch.nn.functional.linear be a function of x, weight, and bias=None within a `with` block."""
    original = F.linear
    F.linear = function
    try:
        yield
    finally:
        F.linear = original


class SplitLinear(torch.autograd.Function):
    """x W^T + b, whose backward pass computes the gradient of x only, and queues those of W and b."""

    @staticmethod
    def forward(ctx, x, weight, bias, queue):
        """Args:
            x: [..., in].
            weight: [out, in].
            bias: [out], or None.
            queue: the list to which the backward pass appends what W needs.
        """
        ctx.save_for_backward(x)
        # An attribute: saved tensors of a recomputed pass are copies, and a gradient belongs to the parameter itself.
        ctx.weight, ctx.bias, ctx.queue = weight, bias, queue
        return plain_linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        ctx.queue.append((ctx.weight, ctx.bias, x.detach(), grad))  # without the history that led to x
        return grad @ ctx.weight, None, None, None


class SplitStage:
    """A part of a model, as Stage of lab 10, with its backward pass in two parts.

    Attributes:
        module: called with hidden states and a micro-batch.
        in_flight: {key of a micro-batch: what its B needs}.
        queues: {key of a micro-batch: what its W needs}.
    """

    def __init__(self, module):
        self.module, self.in_flight, self.queues = module, {}, {}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: identifies the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        if x is not None:
            x = x.detach().requires_grad_()
        with self.split(key):
            y = self.module(x, data)
        self.in_flight[key] = x, y
        return y.detach()

    def backward(self, key, grad):
        """Run B of a micro-batch, and return the gradient of its x (None on the first stage).

        Args:
            key: identifies the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        x, y = self.in_flight.pop(key)
        with self.split(key):  # recomputation calls the module again
            y.backward(grad)
        return None if x is None else x.grad

    def weight(self, key):
        """Run W of a micro-batch: add to the gradients of the matrices and biases of its linear layers."""
        with torch.no_grad():
            for weight, bias, x, grad in self.queues.pop(key):
                x, grad = x.flatten(0, -2), grad.flatten(0, -2)
                if weight.requires_grad:
                    weight.backward(grad.t() @ x)  # accumulates as autograd does, in the parameter's grad_dtype
                if bias is not None and bias.requires_grad:
                    bias.backward(grad.sum(0))

    def split(self, key):
        queue = self.queues.setdefault(key, [])
        return linear_replaced(lambda input, weight, bias=None: SplitLinear.apply(input, weight, bias, queue))
