"""Functions that ranks run."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minite.functional import fp8_linear
from minite.recipes import DelayedScaling
from minite.state import LinearState, autocast, current


def scales(reduce_amax: bool, group_size: int) -> float:
    """Return the input's scale after a step in which rank r's amax is 2 (r + 1)."""
    rank = dist.get_rank()
    groups = [dist.new_group(list(range(first, first + group_size)))
              for first in range(0, dist.get_world_size(), group_size)]
    state = LinearState()
    with autocast(True, recipe=DelayedScaling(reduce_amax=reduce_amax),
                  amax_reduction_group=groups[rank // group_size]):
        fp8_linear(torch.full((8, 16), 2.0 * (rank + 1)), torch.ones(8, 16), None,
                   state.quantizers(current()))
    return state.state_dict()["scale_fwd"][0].item()
