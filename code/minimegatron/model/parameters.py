"""A weight knows its name, its distribution and its slice.

Every weight is drawn whole from its own name and then sliced, so a model starts from the same
weights however it is cut.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from minimegatron.context import Context
from minimegatron.dtypes import params_dtype

if TYPE_CHECKING:
    from minimegatron.parallel.grid import Group


def parameter(ctx: Context, *shape: int, std: float | None = None, fill: float = 0.0,
              split: int | None = None) -> nn.Parameter:
    """A weight of N(0, std), or filled with `fill`; `draw_weights` gives it its values.

    shape: of the whole weight. split: the dimension that the tensor-parallel ranks divide among
    them; None: each of them holds a copy.
    """
    sizes = list(shape)
    if split is not None:
        sizes[split] //= ctx.grid.tp.size
    made = nn.Parameter(torch.empty(sizes, device=ctx.device.torch_device,
                                    dtype=params_dtype(ctx.config)))
    made.init_std, made.init_fill = std, fill
    made.whole_shape, made.split = shape, split
    return made


def own_slice(whole: torch.Tensor, split: int | None, tp: Group) -> torch.Tensor:
    """The view of a whole weight that lives on this tensor-parallel rank."""
    if split is None:
        return whole
    size = whole.shape[split] // tp.size
    return whole.narrow(split, tp.index * size, size)


def draw_weights(module: nn.Module, seed: int, tp: Group) -> None:
    """Give every parameter its initial values, each from a generator seeded with its name."""
    for name, weight in module.named_parameters():
        if weight.is_meta:
            continue
        with torch.no_grad():
            if weight.init_std is None:
                weight.fill_(weight.init_fill)
            else:
                digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
                drawn = torch.empty(weight.whole_shape)
                drawn.normal_(0, weight.init_std, generator=generator)
                weight.copy_(own_slice(drawn, weight.split, tp))
