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

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.arguments import Config
from minimegatron.arguments.checks import stays_in_bf16
from minimegatron.context import Context
from minimegatron.model import fp8_ops
from minimegatron.model.fp8_linear import BACKWARD, FORWARD, Fp8TensorParallel, History
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
    """FP8 state of a model chunk's linear layers, which register with it when they are built.

    Attributes:
        histories: amaxes of inputs and weights ("fwd"), and of gradients ("bwd"), with delayed
            scaling; else empty.
        linears: the layers in FP8; each has its Fp8TensorParallel as `tp`.
    """

    def __init__(self, ctx: Context, layers: Iterable[int], linears: int = 4) -> None:
        """Create the state of some layers of the whole model (from 1), with `linears` each.

        Those that --first-last-layers-bf16 excludes are left out.
        """
        super().__init__()
        self.ctx, self.recipe, self.grid = ctx, recipe_of(ctx.config), ctx.grid
        self.layers = {number for number in layers if not stays_in_bf16(ctx.config, number)}
        self.histories, count = nn.ModuleDict(), linears * len(self.layers)
        if isinstance(self.recipe, DelayedScaling) and count:
            steps = self.recipe.amax_history_len
            self.histories["fwd"] = History(ctx, steps, len(FORWARD) * count)
            self.histories["bwd"] = History(ctx, steps, len(BACKWARD) * count)
        self.linears: list[nn.Module] = []

    def of_layer(self, number: int) -> Fp8 | None:
        """Return what the linear layers of a layer are built with: None if it stays in 16 bits."""
        return self if number in self.layers else None

    def register(self, linear: nn.Module, is_column: bool) -> Fp8TensorParallel:
        """Return the `tp` of a column- or row-parallel layer, the chunk's next one in FP8."""
        self.linears.append(linear)
        kind = Fp8TensorParallel
        if self.ctx.config.tp_comm_overlap:
            from minimegatron.model.tp_overlap import Fp8TensorParallelWithOverlap

            kind = Fp8TensorParallelWithOverlap
        return kind(self.ctx, self.recipe, self.histories, len(self.linears) - 1, is_column)

    def end_step(self) -> None:
        """After the last backward pass: discard the rounded weights, and update the scales.

        Every rank of the stage must call it: amaxes are all-reduced over the tensor- and
        data-parallel ranks.
        """
        for linear in self.linears:
            linear.tp.weights = None
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
