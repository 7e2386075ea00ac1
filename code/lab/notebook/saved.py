"""What autograd keeps for the backward pass, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Saved:
    """A tensor that was kept."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


def tensors(f: Callable[..., torch.Tensor], *inputs: torch.Tensor,
            weights: Sequence[torch.Tensor] = ()) -> list[Saved]:
    """What is kept for the backward pass of f(*inputs), each memory once.

    `weights` are left out (their memory is there in any case), and so is what is no larger than
    one number. Two tensors in one memory, such as a view and what it looks at, count once, as the
    larger.
    """
    known = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        where = tensor.untyped_storage().data_ptr()
        if where not in known and tensor.numel() > 1:
            there = kept.get(where)
            kept[where] = tensor if there is None or there.nbytes < tensor.nbytes else there
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        # Held until all is counted: memory that was given back could be counted as one with the
        # next tensor's.
        result = f(*inputs)
    found = [Saved(tuple(one.shape), str(one.dtype).removeprefix("torch."), one.nbytes)
             for one in kept.values()]
    del result
    return found


def show(f: Callable[..., torch.Tensor], *inputs: torch.Tensor,
         weights: Sequence[torch.Tensor] = ()) -> int:
    """Print what is kept, a line each; the bytes of all."""
    found = tensors(f, *inputs, weights=weights)
    for one in found:
        print(f"  {'x'.join(map(str, one.shape)):>14} {one.dtype:8} {one.bytes:>10,} bytes")
    total = sum(one.bytes for one in found)
    print(f"  {'together':>14} {'':8} {total:>10,} bytes")
    return total
