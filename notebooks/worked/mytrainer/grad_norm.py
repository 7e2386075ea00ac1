"""Clip the gradients of a model in parts, some of which are on several ranks."""

import torch
import torch.distributed as dist


def clip_grad_norm(parameters, max_norm, region):
    """Scale the gradients in place so that the norm of the whole model's gradient is at most max_norm.

    Args:
        parameters: an iterator over this rank's parameters; .grad is in fp32, or None. At least one has a gradient.
        max_norm: may be infinite.
        region: the ranks that share the model.

    Returns the norm before clipping, a tensor of one element, the same on all ranks of the region.
    """
    parameters = [one for one in parameters if one.grad is not None]
    square = sum(one.grad.float().square().sum() / one.copies for one in parameters)
    dist.all_reduce(square, group=region.group)
    norm = square.sqrt()
    torch._foreach_mul_([one.grad for one in parameters], (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
