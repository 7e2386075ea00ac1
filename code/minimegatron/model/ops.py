"""The operations that the model and the optimizer are made of, in plain torch.

Those marked `@operation` are fused kernels on GPUs, and a virtual GPU models them as such
(device/device.py). Tensors have Megatron's layout [s, b, h]: sequence, batch, hidden.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.adamw import adamw as torch_adamw

from minimegatron.device.device import operation
from minimegatron.model.linear import to_compute_dtype

MASKED = -10000.0  # Megatron replaces the scores of future positions with it; here it is added


@operation()
def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return x [.., h] + bias [h]; on GPUs, a part of the dropout_add that follows."""
    return x + bias


def layer_norm(x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter, epsilon: float
               ) -> torch.Tensor:
    """Normalize the last dimension of x [.., h], then scale by weight [h] and add bias [h]."""
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divide x [.., h] by its root mean square, and scale by weight [h] (Zhang & Sennrich 2019)."""
    return F.rms_norm(x, weight.shape, weight, epsilon)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of x [..] in its tanh approximation, as in Megatron's fused kernel."""
    return F.gelu(x, approximate="tanh")


@operation()
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2 of x [..] (So et al. 2021, Primer)."""
    return F.relu(x).square()


@operation()
def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return SiLU(gate) * up [.., f], where x [.., 2f] is gate and up side by side (Shazeer 2020).

    The product is computed in fp32 and rounded once, as in a fused kernel.
    """
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


@operation()
def rotary(x: torch.Tensor, first: int, rotated: int, base: int) -> torch.Tensor:
    """Rotate pairs of channels by angles that grow with the position (Su et al. 2021, RoPE).

    Channel i is paired with channel i + rotated/2 and turned by position * base^(-2i/rotated), as
    in Megatron-LM and Llama. Angles and products are computed in fp32.

    Args:
        x: queries or keys, [s, n, d].
        first: the position of the first of them.
        rotated: channels of each head that are rotated, an even number; the others stay.
        base: the base of the angles' frequencies.

    Returns:
        A new tensor, [s, n, d].
    """
    cos, sin = rotary_tables(first, len(x), rotated, base, x.device)
    first, second, rest = x.float().split([rotated // 2, rotated // 2, x.shape[-1] - rotated], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)


@lru_cache(maxsize=4)
def rotary_tables(first: int, length: int, rotated: int, base: int, device: torch.device
                  ) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, fp32 [s, 1, rotated/2], of the angles of all positions.

    Args:
        first: the first position.
        length: positions, s.
        rotated: channels of each head that are rotated.
        base: the base of the angles' frequencies.
        device: where the result is created.
    """
    frequencies = base ** -(torch.arange(0, rotated, 2, device=device) / rotated)
    angles = torch.outer(torch.arange(first, first + length, device=device), frequencies)[:, None]
    return angles.cos(), angles.sin()


@operation()
def dropout(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """Zero the elements of x [..] that the mask `keep` (bool [..]) drops, and scale the others by
    1 / (1 - p)."""
    return x * keep * (1 / (1 - p))


@operation()
def dropout_add(x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor | None, p: float
                ) -> torch.Tensor:
    """Return residual + dropout(x), all [..]; keep is a bool mask [..], or None for no dropout."""
    return residual + x if keep is None else torch.addcmul(residual, x, keep, value=1 / (1 - p))


def causal_mask(size: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask [1, s, s]: 0 on and below the diagonal, MASKED above it."""
    mask = torch.empty((1, size, size), device=device, dtype=dtype)
    fill_causal_mask(mask)
    return mask


@operation("mask")
def fill_causal_mask(mask: torch.Tensor) -> None:
    """Fill `mask` [1, s, s] as causal_mask describes."""
    mask.fill_(MASKED).triu_(1)


@operation()
def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor,
              keep: torch.Tensor | None, p: float) -> torch.Tensor:
    """Compute causal attention with materialized scores, as in 2021.

    Query, key, value, and the result are [s, b*heads, d].

    Args:
        mask: [1, s, s], from causal_mask.
        keep: dropout mask of the probabilities, bool [b*heads, s, s], or None for no dropout.
        p: dropout probability.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    scores = torch.baddbmm(
        to_compute_dtype(mask), to_compute_dtype(query.transpose(0, 1)),
        to_compute_dtype(key.permute(1, 2, 0)), alpha=scale).to(query.dtype)
    probabilities = scores.softmax(-1)  # torch computes it in fp32, whatever the dtype
    if keep is not None:
        probabilities = probabilities * keep * (1 / (1 - p))
    out = torch.bmm(to_compute_dtype(probabilities), to_compute_dtype(value.transpose(0, 1)))
    return out.to(value.dtype).transpose(0, 1)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of every token [..] from logits [.., V] in fp32 and labels int64 [..]."""
    flat = F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), reduction="none")
    return flat.view(labels.shape)


def norm(flat: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of a flat buffer [n], as one element in fp32.

    It is computed in two levels, because a kernel that adds millions of fp32 squares in a row loses
    small addends: 1.5% of the norm with 124 million elements on the CPU.
    """
    whole = flat.numel() // 1024 * 1024
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, 1024), dim=1, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.cat([rows, flat[whole:].float()]))


@operation("weights", "exp_avg", "exp_avg_sq")
def adamw_(weights: torch.Tensor, gradients: torch.Tensor, exp_avg: torch.Tensor,
           exp_avg_sq: torch.Tensor, steps: torch.Tensor, lr: torch.Tensor, beta1: float,
           beta2: float, eps: float, weight_decay: float, skip: torch.Tensor | None) -> None:
    """Take one AdamW step in place (Loshchilov & Hutter 2019) with a fused kernel.

    Weights, gradients, and both moments are flat buffers [n].

    Args:
        steps: number of this update, from 1; one element of fp32, on the weights' device.
        lr: learning rate, one element of fp32, or of fp64 where no digit may be lost.
        skip: one element of fp32, or None; nothing changes if it is 1.
    """
    # torch's function counts the step itself. Its optimizer class is not used because it imports
    # the compiler, which takes a second.
    torch_adamw([weights], [gradients], [exp_avg], [exp_avg_sq], [], [steps - 1], foreach=False,
                fused=True, found_inf=skip, amsgrad=False, maximize=False, lr=lr, beta1=beta1,
                beta2=beta2, eps=eps, weight_decay=weight_decay)


@operation()
def flash_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int
                    ) -> torch.Tensor:
    """Compute causal attention without materializing the scores and without dropout.

    Query and result are [s, b*heads, d]; key and value have as many heads, or fewer of them.
    """
    s, rows, d = query.shape
    q, k, v = (to_compute_dtype(x.view(s, rows // heads, -1, d).permute(1, 2, 0, 3))
               for x in (query, key, value))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=key.shape != query.shape).to(value.dtype)
    return out.permute(2, 0, 1, 3).reshape(s, rows, d)
