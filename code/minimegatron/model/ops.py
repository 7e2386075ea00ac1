"""The few operations that a device may want to fuse, each in plain torch.

On a modeled device some are operations of its own, with the shapes and the cost of a real card's
fused kernels and without values; nothing else of the model knows. Layout is Megatron's [s, b, h]:
sequence, batch, hidden.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.adamw import adamw as update

from minimegatron.model.matmul import widen
from virtualgpu.core import kernels as modeled

MASKED = -10000.0  # what Megatron puts for a score that causality forbids; here it is added


def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x [.., h] + bias [h]; on a modeled device a part of the dropout and sum that follow."""
    return modeled.add_bias(x, bias) if x.is_meta else x + bias


def layer_norm(x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, epsilon: float
               ) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form, as Megatron's fused kernel has it."""
    return F.gelu(x, approximate="tanh")


def dropout(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """keep: bool of x's shape."""
    return modeled.dropout(x, keep) if x.is_meta else x * keep * (1 / (1 - p))


def dropout_add(x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor | None, p: float
                ) -> torch.Tensor:
    """residual + dropout(x); keep: bool of x's shape, None when nothing is dropped."""
    if x.is_meta and keep is not None:
        return modeled.dropout_add(x, residual, keep)
    return residual + x if keep is None else torch.addcmul(residual, x, keep, value=1 / (1 - p))


def causal_mask(size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[1, s, s]: 0 where a position may look, MASKED above the diagonal."""
    if device.type == "meta":
        return torch.empty((1, size, size), device=device, dtype=dtype)
    return torch.full((1, size, size), MASKED, device=device, dtype=dtype).triu_(1)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor,
              keep: torch.Tensor | None, p: float) -> torch.Tensor:
    """Materialised core attention, as in 2021.

    query, key, value: [s, b*heads, d]; mask: [1, s, s]; keep: bool [b*heads, s, s] or None.
    Returns [s, b*heads, d].
    """
    if query.is_meta:
        return modeled.attention(query, key, value, keep)
    scale = 1 / math.sqrt(query.shape[-1])
    scores = torch.baddbmm(widen(mask), widen(query.transpose(0, 1)), widen(key.permute(1, 2, 0)),
                           alpha=scale).to(query.dtype)
    probabilities = scores.softmax(-1)  # torch computes it in fp32, whatever the type
    if keep is not None:
        probabilities = probabilities * keep * (1 / (1 - p))
    out = torch.bmm(widen(probabilities), widen(value.transpose(0, 1))).to(value.dtype)
    return out.transpose(0, 1)


def flash_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int
                    ) -> torch.Tensor:
    """The same through scaled_dot_product_attention, which never stores the scores; no dropout.

    query, key, value: [s, b*heads, d]. Returns [s, b*heads, d].
    """
    if query.is_meta:
        return modeled.flash_attention(query, key, value)
    s, bn, d = query.shape
    q, k, v = (widen(x.view(s, bn // heads, heads, d).permute(1, 2, 0, 3))
               for x in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True).to(value.dtype)
    return out.permute(2, 0, 1, 3).reshape(s, bn, d)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of every token: logits [.., V] in fp32, labels int64 [..]. Returns [..]."""
    flat = F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), reduction="none")
    return flat.view(labels.shape)


def norm(flat: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of a flat buffer, as one element in fp32.

    In two levels: a kernel that adds up millions of fp32 squares in a row loses small addends
    (1.5% of the norm at 124 million of them, on the CPU)."""
    whole = flat.numel() // 1024 * 1024
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, 1024), dim=1, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.cat([rows, flat[whole:].float()]))


@torch.no_grad()
def adamw(weights: torch.Tensor, gradients: torch.Tensor, exp_avg: torch.Tensor,
          exp_avg_sq: torch.Tensor, steps: torch.Tensor, *, lr: float | torch.Tensor, beta1: float,
          beta2: float, eps: float, weight_decay: float, fused: bool,
          skip: torch.Tensor | None = None) -> None:
    """One AdamW update in place. steps: the update's number, from 1: one element, where
    the weights are if fused, else on the host. skip: fp32, one element: where it is 1, nothing is
    changed (fused only). lr: one element of fp32 where it is a tensor."""
    if weights.is_meta:
        modeled.adamw(weights, gradients, exp_avg, exp_avg_sq)
        return
    # torch's function counts the step itself. Its optimizer class is not used because it imports
    # the compiler, which takes a second.
    update([weights], [gradients], [exp_avg], [exp_avg_sq], [], [steps - 1], foreach=False,
           fused=fused, found_inf=skip, amsgrad=False, maximize=False, lr=lr, beta1=beta1,
           beta2=beta2, eps=eps, weight_decay=weight_decay)
