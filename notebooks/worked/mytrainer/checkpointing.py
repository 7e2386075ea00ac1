"""Activation checkpointing: save the inputs of a function only, and run it again in the backward pass."""

import torch
from mytrainer.states import States


def checkpoint(function, *arguments):
    """Return function(*arguments), whose activations the backward pass computes again.

    Args:
        function: returns a tensor or a tuple of tensors; may use parameters and dropout.
        arguments: tensors, which are saved, and other objects.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return Checkpoint.apply(function, torch.empty(0, requires_grad=True), *arguments)


class Checkpoint(torch.autograd.Function):
    """The autograd function behind `checkpoint`."""

    @staticmethod
    def forward(ctx, function, _trigger, *arguments):
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        ctx.function, ctx.states = function, States("cuda" if any(one.is_cuda for one in tensors) else "cpu")
        ctx.others = [None if isinstance(one, torch.Tensor) else (one,) for one in arguments]
        ctx.save_for_backward(*tensors)
        return function(*arguments)

    @staticmethod
    def backward(ctx, *gradients):
        saved = iter(ctx.saved_tensors)
        arguments = [other[0] if other else next(saved) for other in ctx.others]
        arguments = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
                     for one in arguments]
        with torch.enable_grad(), ctx.states.replay():
            outputs = ctx.function(*arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        used = [(one, gradient) for one, gradient in zip(outputs, gradients, strict=True) if one.requires_grad]
        torch.autograd.backward(*zip(*used, strict=True))
        return None, None, *(one.grad if isinstance(one, torch.Tensor) else None for one in arguments)
