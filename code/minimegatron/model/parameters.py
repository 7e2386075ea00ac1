"""Parameter specs: what a parameter is. Data parallelism, the optimizer, and checkpoints ask them.

A spec has the parameter's full shape and initialization, and says which axis of the grid partitions
it, over which ranks its gradient is summed, and whether it is trained. A module creates its
parameters from specs with `add_parameters`; `named_param_specs` collects them for a whole model.
Every parameter is drawn at its full shape from a generator seeded with its name, and then
partitioned: a model starts from the same values in every layout.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch import nn

from minimegatron.context import Context, params_dtype

if TYPE_CHECKING:
    from minimegatron.grid import Group
    from minimegatron.model.linear import GradAccumulator


class ParamGroup(IntEnum):
    """Parameters that the optimizer treats alike, in the order of its flat buffers.

    The two replicated groups are neighbors, so that one all-reduce covers both.
    """

    TIED_COPY = 0  # also a matrix; the first stage's copy is the one that norms count
    PARTITIONED_MATRIX = 1
    REPLICATED_MATRIX = 2
    REPLICATED_VECTOR = 3
    PARTITIONED_VECTOR = 4

    @property
    def has_weight_decay(self) -> bool:
        """Return whether AdamW decays these parameters: matrices, but not biases and norms."""
        return self <= ParamGroup.REPLICATED_MATRIX

    @property
    def is_replicated(self) -> bool:
        """Return whether every tensor-parallel rank holds a copy of these parameters."""
        return self in (ParamGroup.REPLICATED_MATRIX, ParamGroup.REPLICATED_VECTOR)


@dataclass
class ParamSpec:
    """One parameter's shape, partitioning, initialization, and gradient.

    Attributes:
        full_shape: its shape before partitioning.
        partition_dim: the dimension that tensor-parallel ranks partition; None if every rank holds
            a copy.
        reduced_over: the grid's groups over whose ranks its gradient is summed, because each has
            seen other tokens: the replicas (data parallelism), and perhaps tp (the optimizer).
        trained: whether it is trained. A frozen parameter has no gradient, no place in the flat
            buffers, and no optimizer state. Set it before data parallelism is built.
        init_std: standard deviation of its normal initialization; None to fill it with a constant.
        init_value: that constant.
        blocks: equal blocks of its rows, each of which is partitioned on its own (SwiGLU has two).
        tied: whether another pipeline stage holds the same parameter (the word embedding).
        tied_copy: whether this is the last stage's copy of a tied parameter.
        accumulator: receives its gradient; None until data parallelism sets it, and autograd then
            leaves the gradient in `parameter.grad`.
    """

    full_shape: tuple[int, ...]
    partition_dim: int | None = None
    init_std: float | None = None
    init_value: float = 0.0
    blocks: int = 1
    tied: bool = False
    tied_copy: bool = False
    accumulator: GradAccumulator | None = None
    reduced_over: tuple[str, ...] = ("replicas",)
    trained: bool = True

    @property
    def group(self) -> ParamGroup:
        """Return where the flat buffers hold this parameter."""
        if self.tied_copy:
            return ParamGroup.TIED_COPY
        replicated = self.partition_dim is None
        if len(self.full_shape) > 1:
            return ParamGroup.REPLICATED_MATRIX if replicated else ParamGroup.PARTITIONED_MATRIX
        return ParamGroup.REPLICATED_VECTOR if replicated else ParamGroup.PARTITIONED_VECTOR

    def shape(self, tp: Group) -> list[int]:
        """Return the shape of this rank's partition."""
        shape = list(self.full_shape)
        if self.partition_dim is not None:
            shape[self.partition_dim] //= tp.size
        return shape


def add_parameters(module: nn.Module, ctx: Context, **specs: ParamSpec | None) -> None:
    """Register this rank's partitions of uninitialized parameters under the specs' names.

    The specs become the module's attribute `param_specs`. A parameter whose spec is None is None.
    """
    config, dtype = ctx.config, params_dtype(ctx.config)
    for name, spec in specs.items():
        if spec and spec.partition_dim is None and config.sequence_parallel:
            spec.reduced_over += ("tp",)  # each rank sees s/t of the tokens
        with (ctx.device.outside() if config.shards_new_params
              else nullcontext(ctx.device.torch_device)) as device:
            module.register_parameter(name, spec and nn.Parameter(
                torch.empty(spec.shape(ctx.grid.tp), dtype=dtype, device=device)))
    module.param_specs = {name: spec for name, spec in specs.items() if spec is not None}


def named_param_specs(model: nn.Module) -> dict[str, ParamSpec]:
    """Return the specs of all parameters of a model, under the names of `named_parameters`."""
    return {f"{path}.{name}" if path else name: spec for path, module in model.named_modules()
            for name, spec in getattr(module, "param_specs", {}).items()}


def partition_of(full: torch.Tensor, partition_dim: int | None, tp: Group) -> torch.Tensor:
    """Return this tensor-parallel rank's partition of a full tensor [..], as a view.

    It is 1/t of dimension `partition_dim`. If that is None, every rank holds all of it.
    """
    if partition_dim is None:
        return full
    size = full.shape[partition_dim] // tp.size
    return full.narrow(partition_dim, tp.index * size, size)


def draw(name: str, spec: ParamSpec, seed: int) -> torch.Tensor:
    """Return the initial values of a whole parameter, fp32 on the host, in its full shape."""
    if spec.init_std is None:
        return torch.full(spec.full_shape, spec.init_value)
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return torch.empty(spec.full_shape).normal_(0, spec.init_std, generator=generator)


@torch.no_grad()
def initialize_parameters(model: nn.Module, seed: int, tp: Group) -> None:
    """Initialize every parameter, each from a generator seeded with --seed and its name.

    Do not call it for tensors without values: it would draw the full parameters for nothing.
    """
    specs = named_param_specs(model)
    for name, parameter in model.named_parameters():
        spec = specs[name]
        full = draw(name, spec, seed)
        for part, block in zip(parameter.chunk(spec.blocks), full.chunk(spec.blocks), strict=True):
            part.copy_(partition_of(block, spec.partition_dim, tp))
