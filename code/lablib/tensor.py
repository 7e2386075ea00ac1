"""Fill the layers of lab 09 with values, and train small and large models with them."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def sines(shape: tuple[int, ...], seed: float) -> torch.Tensor:
    """Return a tensor of sines, which is the same on every rank and machine.

    Args:
        shape: the shape of the tensor.
        seed: the seed of its values.
    """
    count = torch.Size(shape).numel()
    return (1.3 * torch.arange(count) + 0.7 * seed).sin().view(shape)


def fill(parameters: list[torch.nn.Parameter], seeds: list[float]) -> None:
    """Fill parameters with sines of half the usual size.

    Args:
        parameters: this rank's parts.
        seeds: one for each parameter.
    """
    with torch.no_grad():
        for parameter, seed in zip(parameters, seeds, strict=True):
            parameter.copy_(0.5 * sines(parameter.shape, seed))


def projected(tensor: torch.Tensor) -> float:
    """Return the scalar product of a tensor with sines: one number that depends on all elements."""
    return (tensor.float() * sines(tensor.shape, 2.0)).sum().item()


def gradients(parameters: list[torch.nn.Parameter]) -> list[float]:
    """Return the projected gradient of each parameter."""
    return [projected(parameter.grad) for parameter in parameters]


def layer_step(hidden: int, inner: int, heads: int, kv_heads: int, length: int,
               is_gated: bool = True) -> None:
    """Train one transformer layer on one sequence for two steps, on a GPU.

    Parameters and activations are in bf16; gradients, master weights, and Adam's moments in fp32.

    Args:
        hidden: the hidden size h.
        inner: the inner size of the MLP.
        heads: query heads of the attention, which is a FlashAttention kernel.
        kv_heads: key and value heads.
        length: tokens of the sequence.
        is_gated: whether the MLP is SwiGLU, with three matrices, or has two and GELU.
    """
    size = hidden // heads
    shapes = [((heads + 2 * kv_heads) * size, hidden), (hidden, hidden), (inner, hidden),
              (hidden, inner), *([(inner, hidden)] if is_gated else [])]
    weights = [torch.nn.Parameter(torch.zeros(shape, device="cuda", dtype=torch.bfloat16))
               for shape in shapes]
    for weight in weights:
        weight.grad_dtype = torch.float32
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    for _ in range(2):
        x = torch.zeros(length, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer_output(x, weights, heads, kv_heads).sum().backward()
        for weight, master in zip(weights, masters, strict=True):
            master.grad, weight.grad = weight.grad, None
        optimizer.step()
        for weight, master in zip(weights, masters, strict=True):
            weight.data.copy_(master)
            master.grad = None


def layer_output(x: torch.Tensor, weights: list[torch.nn.Parameter], heads: int, kv_heads: int
                 ) -> torch.Tensor:
    """Return a layer's output [s, h] for x [s, h].

    Args:
        x: the input.
        weights: the matrices of layer_step.
        heads: query heads.
        kv_heads: key and value heads.
    """
    joint, out, up, down, *gate = weights
    size = x.shape[-1] // heads
    made = F.linear(F.rms_norm(x, x.shape[-1:]), joint).unflatten(-1, (-1, size)).transpose(0, 1)
    query, key, value = made.split([heads, kv_heads, kv_heads])
    core = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True,
                                          enable_gqa=kv_heads < heads)[0]
    x = x + F.linear(core.transpose(0, 1).flatten(1), out)
    normed = F.rms_norm(x, x.shape[-1:])
    if gate:
        return x + F.linear(F.silu(F.linear(normed, gate[0])) * F.linear(normed, up), down)
    return x + F.linear(F.gelu(F.linear(normed, up)), down)
