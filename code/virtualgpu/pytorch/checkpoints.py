"""torch.distributed.checkpoint writes values, so it stops where there are none."""

from __future__ import annotations

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import place
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import PLAIN, inner, space_of

SHOWN = 3  # names in the error message


def install(gpu: CudaGpu) -> None:
    """Check what is saved before any file is written."""
    from torch.distributed.checkpoint import state_dict_saver

    def checked(function):
        def call(state_dict, *args, **kwargs):
            state_dict = function(state_dict, *args, **kwargs)
            check(gpu, state_dict)
            return state_dict
        return call

    # save and async_save both begin with it.
    state_dict_saver._stateful_to_state_dict = checked(state_dict_saver._stateful_to_state_dict)


def check(gpu: CudaGpu, state: object) -> None:
    """Raise NoValue unless the values of all tensors are known."""
    missing = [keystr(path) for path, item in tree_flatten_with_path(state)[0]
               if isinstance(item, torch.Tensor) and unknown(gpu, item)]
    if missing:
        raise NoValue(
            f"{place()}: torch.distributed.checkpoint writes values, and those of "
            f"{', '.join(missing[:SHOWN])}{', ...' * (len(missing) > SHOWN)} were not computed: "
            "skip the checkpoint, use torch.save, which writes shapes only, or run a tiny model "
            "with --values all")


def unknown(gpu: CudaGpu, tensor: torch.Tensor) -> bool:
    local = None if type(tensor) in PLAIN else inner(tensor)
    tensor = tensor if local is None else local
    return space_of(gpu, tensor) is not None and not gpu.values.known(tensor)
