"""FP8 GEMMs in the linear layers of transformer layers (--fp8-format).

The numerics are minite's: formats, scales, blocks, and recipes (docs/minite.md). This file adds
what a parallel trainer needs. Weights are rounded once per step, and all of its micro-batches use
them. Delayed scaling's histories advance once per step, after their amaxes have been all-reduced
over the ranks that share the tensors: so scales depend neither on the layout, nor on the schedule,
nor on recomputation. With sequence parallelism, tensors that have a single scale are all-gathered
in FP8.

Embeddings, the output layer, norms, and attention stay in 16 bits, as in Megatron-LM.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.arguments import Config
from minimegatron.arguments.checks import stays_in_bf16
from minimegatron.context import Context
from minimegatron.model import fp8_ops
from minimegatron.model.fp8_linear import BACKWARD, FORWARD, Fp8TensorParallel, History
from minimegatron.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from minite.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    Recipe,
)


def recipe_of(config: Config) -> Recipe:
    """Return the recipe of the flags."""
    formats = {"e4m3": Format.E4M3, "hybrid": Format.HYBRID}[config.fp8_format]
    if config.fp8_recipe == "delayed":
        return DelayedScaling(formats, config.fp8_margin, config.fp8_amax_history_len,
                              config.fp8_amax_compute_algo)
    return {"tensorwise": Float8CurrentScaling, "blockwise": Float8BlockScaling,
            "mxfp8": MXFP8BlockScaling}[config.fp8_recipe](formats)


class Fp8(nn.Module):
    """FP8 state of a model chunk, which it creates for the linear layers of its transformer layers.

    Attributes:
        histories: amaxes of inputs and weights ("fwd"), and of gradients ("bwd"), with delayed
            scaling; else empty.
        linears: the layers in FP8, by their weight.
    """

    def __init__(self, ctx: Context, layers: nn.Module) -> None:
        """Let the linear layers of `layers` compute in FP8.

        Args:
            ctx: the context.
            layers: transformer layers; those that --first-last-layers-bf16 excludes stay as they
                are.
        """
        super().__init__()
        self.recipe, self.grid = recipe_of(ctx.config), ctx.grid
        linears = [module for layer in layers.values()
                   if not stays_in_bf16(ctx.config, layer.number) for module in layer.modules()
                   if isinstance(module, ColumnParallelLinear | RowParallelLinear)]
        self.histories = nn.ModuleDict()
        if isinstance(self.recipe, DelayedScaling) and linears:
            steps = self.recipe.amax_history_len
            self.histories["fwd"] = History(ctx, steps, len(FORWARD) * len(linears))
            self.histories["bwd"] = History(ctx, steps, len(BACKWARD) * len(linears))
        self.linears: dict[nn.Parameter, Fp8TensorParallel] = {}
        for number, linear in enumerate(linears):
            is_column = isinstance(linear, ColumnParallelLinear)
            tp = Fp8TensorParallel(ctx, self.recipe, self.histories, number, is_column)
            linear.tp = self.linears[linear.weight] = tp

    def end_step(self) -> None:
        """After the last backward pass: discard the rounded weights, and update the scales.

        Every rank of the stage must call it: amaxes are all-reduced over the tensor- and
        data-parallel ranks.
        """
        for linear in self.linears.values():
            linear.weights = None
        if not self.histories:
            return
        current = [history.amax[0] for history in self.histories.values()]
        groups = [group for group in (self.grid.tp, self.grid.replicas) if group.size > 1]
        if groups:
            together = torch.cat(current)
            for group in groups:
                group.all_reduce(together, dist.ReduceOp.MAX)
            for row, part in zip(current, together.split([len(row) for row in current]),
                                 strict=True):
                row.copy_(part)
        recipe = self.recipe
        for (_, history), role in zip(self.histories.items(), ("input", "grad"), strict=True):
            history.is_loaded = False
            fp8_ops.fp8_update(history.amax, history.scale, history.scale_inv, recipe.dtype(role),
                               recipe.margin, recipe.amax_compute_algo)
