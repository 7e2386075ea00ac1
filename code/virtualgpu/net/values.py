"""Values of small tensors in collectives, computed on the CPU from all ranks' inputs.

A virtual GPU may know the values of some tensors (`gpu.values`). A collective whose inputs are
known on every rank computes its outputs; after any other, the outputs are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Protocol

import torch
import torch.distributed as dist

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.messages import RankMessage, contents, is_meta, without_modes

Inputs = list[list[torch.Tensor]]  # by rank, then by tensor; flat, on the CPU
Combine = Callable[[Inputs, Sequence[RankMessage]], list[torch.Tensor]]


class Known(Protocol):
    """The known values of a GPU's tensors."""

    def known(self, tensor: torch.Tensor) -> bool: ...
    def value(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def put(self, tensor: torch.Tensor, value: torch.Tensor | None) -> None: ...


REDUCE = {
    "SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
    "AVG": torch.add, "PREMUL_SUM": torch.add}


def op_name(op: dist.ReduceOp) -> str:
    """Return the name of a reduction. Raises VirtualGpuError for one that NCCL does not have."""
    for name in REDUCE:
        if op == getattr(dist.ReduceOp, name):
            return name
    raise VirtualGpuError(
        f"reduction {op} is not modeled on virtual GPUs; these are: {', '.join(REDUCE)}")


def reduction(op: dist.ReduceOp) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
    """Return a function that reduces one tensor per rank, in the order of the ranks."""
    name = op_name(op)
    factor = op.__getstate__()[1] if name == "PREMUL_SUM" else None

    def apply(items: Sequence[torch.Tensor]) -> torch.Tensor:
        if factor is not None:
            items = [item * factor for item in items]
        total = reduce(REDUCE[name], items)
        if name != "AVG":
            return total
        return total / len(items) if total.is_floating_point() else total // len(items)
    return apply


def known_contents(known: Known | None, tensors: Sequence[torch.Tensor]) -> bytes | None:
    """Return the contents of tensors, or None unless all of them are known.

    Args:
        known: the known values of the GPU's tensors, or None.
        tensors: tensors on the virtual GPU or on the CPU.
    """
    known_tensors = []
    for item in tensors:
        if not is_meta(item):
            known_tensors.append(item)
        elif known is not None and known.known(item):
            with without_modes():
                known_tensors.append(known.value(item))
        else:
            return None
    return contents(known_tensors)


def store(known: Known | None, taken: Sequence[torch.Tensor],
          results: Sequence[torch.Tensor] | None) -> None:
    """Set the values of a collective's outputs.

    Args:
        known: the known values of the GPU's tensors, or None.
        taken: the outputs.
        results: their values, flat; None if they are not known.
    """
    for at, target in enumerate(taken):
        with without_modes():
            result = None if results is None else results[at].to(target.dtype).view(target.shape)
            if not is_meta(target):
                if result is not None:
                    target.detach().copy_(result)
            elif known is not None:
                _put(known, target, result)


def _put(known: Known, target: torch.Tensor, result: torch.Tensor | None) -> None:
    if result is not None and known.known(target):
        known.value(target).copy_(result)
    elif result is not None and target.nbytes == target.untyped_storage().nbytes():
        known.put(target, result)
    else:  # the rest of its memory is unknown
        known.put(target, None)


def combined(messages: Sequence[RankMessage], contributors: Sequence[int], combine: Combine
             ) -> list[torch.Tensor] | None:
    """Return the values of a collective's outputs, or None if an input is not known.

    Args:
        messages: by rank.
        contributors: the ranks whose inputs count.
        combine: computes the outputs from all ranks' inputs and messages.
    """
    distinct = {id(message): message for message in messages}  # absent ranks repeat one message
    unpacked = {key: message.tensors() for key, message in distinct.items()}
    inputs = [unpacked[id(message)] if rank in contributors else []
              for rank, message in enumerate(messages)]
    if any(tensors is None for tensors in inputs):
        return None
    with without_modes():
        return combine(inputs, messages)
