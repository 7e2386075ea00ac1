"""Recomputation: forget activations after the forward pass, make them again in the backward pass.

Full (Chen et al. 2016): of a group of layers only the input stays, 2sbh bytes in 16 bits, and the
backward pass costs one more forward pass. `uniform` groups all layers by N; `block` treats the
first N layers one by one and keeps the others' activations, as memory allows.
Selective (Korthikanti et al. 2022, section 5): only core attention is made again. It holds
5as/h of a layer's 34 + 5as/h parts of memory, and costs few FLOPs.

Dropout has no state, so the second forward pass is the first one to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from minimegatron.context import Context

if TYPE_CHECKING:
    from minimegatron.parallel.grid import Group


class _Recompute(torch.autograd.Function):
    """run(*inputs), of which only the inputs stay (of the first, 1/t where `spread` is given)."""

    @staticmethod
    def forward(ctx, run, spread, *inputs):
        ctx.run, ctx.spread = run, spread
        x, *others = inputs
        if spread is not None:
            ctx.shape = x.shape
            x = x.reshape(spread.size, -1)[spread.index].clone()
        ctx.save_for_backward(x, *others)
        return run(*inputs)  # no graph is made inside a Function's forward

    @staticmethod
    def backward(ctx, gradient):
        x, *others = ctx.saved_tensors
        if ctx.spread is not None:
            x = ctx.spread.all_gather(x).view(ctx.shape)
        inputs = [tensor.detach().requires_grad_() for tensor in (x, *others)]
        with torch.enable_grad():
            out = ctx.run(*inputs)
            # Gradients of weights go to the parameters that `run` holds, as without recomputation.
            torch.autograd.backward(out, gradient)
        return None, None, *(tensor.grad for tensor in inputs)


def recompute(run: Callable[..., torch.Tensor], *inputs: torch.Tensor, spread: Group | None = None
              ) -> torch.Tensor:
    """run(*inputs), which the backward pass will run again instead of keeping what it computed.

    spread: tensor-parallel ranks that all have the same first input; each keeps a part of it,
    and the backward pass gathers it (--distribute-saved-activations).
    """
    if not torch.is_grad_enabled():
        return run(*inputs)
    if not any(tensor.requires_grad for tensor in inputs):
        # Nothing before needs a gradient (it may be frozen), but weights inside do.
        inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    return _Recompute.apply(run, spread, *inputs)


def groups(count: int, method: str, size: int) -> list[tuple[range, bool]]:
    """`count` layers as (consecutive layers, whether they are recomputed together)."""
    if method == "uniform":
        return [(range(at, min(at + size, count)), True) for at in range(0, count, size)]
    return [(range(at, at + 1), at < size) for at in range(count)]


class Recomputation:
    """What --recompute-* say about the layers of a stage."""

    def __init__(self, ctx: Context) -> None:
        config = ctx.config
        self.full = config.recompute_granularity == "full"
        self.method, self.size = config.recompute_method, config.recompute_num_layers
        self.spread = ctx.grid.tp if config.distribute_saved_activations else None

    def run(self, layers: Sequence[Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor
            ) -> torch.Tensor:
        """x [s, b, h] through all layers."""
        if not self.full:
            return in_turn(layers)(x)
        for members, again in groups(len(layers), self.method, self.size):
            run = in_turn([layers[at] for at in members])
            x = recompute(run, x, spread=self.spread) if again else run(x)
        return x


def in_turn(layers: Sequence[Callable[[torch.Tensor], torch.Tensor]]
            ) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x
    return run
