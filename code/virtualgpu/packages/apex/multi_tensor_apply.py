"""Call one of amp_C's kernels on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

CHUNK = 2048 * 32


def multi_tensor_applier(op: Callable, noop_flag_buffer: Tensor,
                         tensor_lists: Sequence[Sequence[Tensor]], *args: object) -> object:
    return op(CHUNK, noop_flag_buffer, tensor_lists, *args)
