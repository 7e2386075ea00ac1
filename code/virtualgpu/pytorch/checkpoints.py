"""Make torch.distributed.checkpoint raise an error for tensors without values."""

from __future__ import annotations

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.pytorch.device import space_of
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import PLAIN_TYPES, inner

MAX_NAMES = 3  # in the error message


def install(gpu: CudaGpu) -> None:
    """Check the state before any file is written."""
    from torch.distributed.checkpoint import state_dict_saver

    def checked(function):
        def call(state_dict, *args, **kwargs):
            state_dict = function(state_dict, *args, **kwargs)
            check(gpu, state_dict)
            return state_dict
        return call

    # Both save and async_save call it first.
    state_dict_saver._stateful_to_state_dict = checked(state_dict_saver._stateful_to_state_dict)


def check(gpu: CudaGpu, state: object) -> None:
    """Raise NoValue unless the values of all tensors are known."""
    missing = [keystr(path) for path, item in tree_flatten_with_path(state)[0]
               if isinstance(item, torch.Tensor) and unknown(gpu, item)]
    if missing:
        raise NoValue(
            f"{program_line()}: torch.distributed.checkpoint writes values, and those of "
            f"{', '.join(missing[:MAX_NAMES])}{', ...' * (len(missing) > MAX_NAMES)} were not "
            "computed: skip the checkpoint, use torch.save, which writes shapes only, or run a "
            "tiny model with --values all")


def unknown(gpu: CudaGpu, tensor: torch.Tensor) -> bool:
    shards = getattr(tensor, "local_shards", None)  # of a ShardedTensor
    if shards is not None:
        return any(unknown(gpu, shard.tensor) for shard in shards())
    local = None if type(tensor) in PLAIN_TYPES else inner(tensor)
    tensor = tensor if local is None else local
    return space_of(gpu, tensor) is not None and not gpu.values.known(tensor)
