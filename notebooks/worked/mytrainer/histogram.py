"""A histogram of a tensor's exponents."""

import torch


def log2_histogram(tensor, lowest=-40, highest=16):
    """Count the elements of a tensor by their exponents.

    Args:
        tensor: of any shape and any floating-point dtype, in any state of autograd.
        lowest: exponent of the first bin, which also counts all smaller elements except zeros.
        highest: exponent of the last bin, which also counts all larger elements and infinities.

    NaN has no exponent and is counted nowhere. Returns the number of zeros, a tensor of one element, and the counts, int64
    [highest - lowest + 1]. The sign does not matter.
    """
    values = tensor.detach().abs().flatten().float()
    zeros = (values == 0).sum()
    values = values[values > 0].clamp(max=2.0**highest)
    bins = (torch.frexp(values).exponent - 1).clamp(lowest, highest) - lowest
    return zeros, torch.bincount(bins, minlength=highest - lowest + 1)
