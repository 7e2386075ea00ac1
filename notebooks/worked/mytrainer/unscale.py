"""Unscale gradients, and find out whether any rank's overflowed."""

import torch
import torch.distributed as dist


def unscale(parameters, scale):
    """Divide the gradients by the loss scale, in place.

    Args:
        parameters: those of this rank; .grad is fp32, or None for a parameter that was not used.
        scale: the loss scale.

    Returns True on all ranks if any gradient of any rank is infinite or NaN, else False.
    """
    parameters = list(parameters)
    overflow = torch.zeros((), device=parameters[0].device)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= scale
            overflow += (~parameter.grad.isfinite()).any()
    dist.all_reduce(overflow)
    return bool(overflow > 0)
