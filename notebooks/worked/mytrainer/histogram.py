"""A histogram of a tensor's exponents."""

import torch


def log2_histogram(tensor, lowest=-40, highest=16):
    """Count the elements of a tensor by their exponents.

    Args:
        tensor: fp16, bf16, or fp32, of any shape; it may require a gradient.
        lowest: exponent of the first bin, which also counts all smaller elements except zeros.
        highest: exponent of the last bin, which also counts all larger elements and infinities.

    NaN has no exponent and is counted nowhere. Returns the number of zeros, a tensor of one element, and the counts, int64
    [highest - lowest + 1]. The sign does not matter.
    """
    values = tensor.detach().abs().flatten().float()
    present = (values > 0).long()  # neither zeros nor NaN
    exponents = torch.frexp(values.clamp(max=2.0**highest)).exponent - 1
    counts = present.new_zeros(highest - lowest + 1)
    counts.scatter_add_(0, exponents.clamp(lowest, highest).long() - lowest, present)
    return (values == 0).sum(), counts
