"""Activation checkpointing: discard activations after the forward pass, and recompute them.

Full (Chen et al. 2016): only the input of a group of layers is saved, 2sbh bytes in 16 bits, and
the backward pass costs one more forward pass. `uniform` checkpoints all layers in groups of N;
`block` checkpoints the first N layers one by one and saves the others' activations, as far as
memory allows.
Selective (Korthikanti et al. 2022, section 5): only core attention is recomputed. It holds
5as/h of a layer's 34 + 5as/h parts of memory, and costs few FLOPs.

Dropout has no state, so the second forward pass equals the first one bit for bit. Only the
--recompute flags and --cpu-offloading-num-layers import this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from minimegatron.context import Context

if TYPE_CHECKING:
    from minimegatron.grid import Group

Layer = Callable[[torch.Tensor], torch.Tensor]


class CheckpointFunction(torch.autograd.Function):
    """function(*inputs), saving nothing but the inputs for the backward pass."""

    @staticmethod
    def forward(ctx, function, partition_group, *inputs):
        ctx.function, ctx.partition_group = function, partition_group
        x, *others = inputs
        if partition_group is not None:
            ctx.shape = x.shape
            x = x.reshape(partition_group.size, -1)[partition_group.index].clone()
        ctx.save_for_backward(x, *others)
        return function(*inputs)  # a Function's forward builds no graph

    @staticmethod
    def backward(ctx, gradient):
        x, *others = ctx.saved_tensors
        if ctx.partition_group is not None:
            x = ctx.partition_group.all_gather(x).view(ctx.shape)
        inputs = [tensor.detach().requires_grad_() for tensor in (x, *others)]
        with torch.enable_grad():
            out = ctx.function(*inputs)
            # Parameters inside `function` get their gradients as without checkpointing.
            torch.autograd.backward(out, gradient)
        return None, None, *(tensor.grad for tensor in inputs)


def checkpoint(function: Callable[..., torch.Tensor], *inputs: torch.Tensor,
               partition_group: Group | None = None) -> torch.Tensor:
    """Return function(*inputs), which the backward pass computes again.

    Args:
        function: returns one tensor; may use parameters.
        inputs: tensors [..], saved for the backward pass.
        partition_group: tensor-parallel ranks whose first input is the same; each saves 1/t of it,
            and the backward pass all-gathers it (--distribute-saved-activations).
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    if not any(tensor.requires_grad for tensor in inputs):
        # Nothing before needs a gradient (it may be frozen), but parameters inside do.
        inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    return CheckpointFunction.apply(function, partition_group, *inputs)


def layer_groups(num_layers: int, method: str, size: int) -> list[tuple[range, bool]]:
    """Return (consecutive layers, whether they are checkpointed as one) for all layers.

    Args:
        num_layers: layers of this chunk of the model.
        method: "uniform" or "block".
        size: layers per group (uniform), or layers checkpointed (block).
    """
    if method == "uniform":
        return [(range(at, min(at + size, num_layers)), True) for at in range(0, num_layers, size)]
    return [(range(at, at + 1), at < size) for at in range(num_layers)]


def layer_runner(ctx: Context) -> Callable[[Sequence[Layer], torch.Tensor], torch.Tensor]:
    """Return the callable that runs layers with recomputation or offloading."""
    if not ctx.config.cpu_offloading_num_layers:
        return FullCheckpointing(ctx)
    from minimegatron.model.activation_offload import ActivationOffload

    return ActivationOffload(ctx)


class FullCheckpointing:
    """Runs layers with --recompute-granularity full."""

    def __init__(self, ctx: Context) -> None:
        config = ctx.config
        self.method, self.size = config.recompute_method, config.recompute_num_layers
        self.partition_group = ctx.grid.tp if config.distribute_saved_activations else None

    def __call__(self, layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
        """Run hidden states x [s, b, h] through all layers; returns the same shape."""
        for members, checkpointed in layer_groups(len(layers), self.method, self.size):
            run = sequential([layers[at] for at in members])
            x = checkpoint(run, x, partition_group=self.partition_group) if checkpointed else run(x)
        return x


def sequential(layers: Sequence[Layer]) -> Layer:
    """Return the composition of layers, each of which maps [s, b, h] to [s, b, h]."""
    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x
    return run
