"""Clip gradients that are sharded over the ranks."""

import torch
import torch.distributed as dist


def clip_grad_norm(parameters, max_norm):
    """Scale the gradients in place so that their norm over all ranks is at most max_norm.

    Args:
        parameters: an iterator over this rank's pieces, of which there is at least one; .grad is in fp32, or None.
            No element is on two ranks.
        max_norm: may be infinite.

    Returns the norm before clipping, a tensor of one element, the same on all ranks.
    """
    parameters = list(parameters)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    square = torch.zeros((), device=parameters[0].device)
    if grads:
        square += torch.stack(torch._foreach_norm(grads)).square().sum()
    dist.all_reduce(square)
    norm = square.sqrt()
    if grads:
        torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
