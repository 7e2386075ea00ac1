"""Apex's causal softmax in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.packages.refusals import refuse, used


def forward(inputs: Tensor, scale: Tensor | float) -> Tensor:
    """Return the softmax of each row of inputs [batch, s, s] up to its diagonal."""
    used("apex")
    refuse("scaled_upper_triang_masked_softmax", scale=None if scale == 1 else scale)
    return torch.ops.virtualgpu.masked_softmax(inputs)


def backward(grads: Tensor, softmax: Tensor, scale: Tensor | float) -> Tensor:
    """Return the gradient of the inputs, which replaces that of the result."""
    return torch.ops.virtualgpu.masked_softmax_backward(grads.contiguous(), softmax)
