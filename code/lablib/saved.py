"""Measure activation memory: the tensors that autograd saves for the backward pass.

torch passes every tensor that an operation saves to a pair of hooks. Counting there works on any
device, and it counts only activations, which a process's resident memory cannot tell apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks


class SavedTensors(saved_tensors_hooks):
    """Counts what autograd saves inside `with SavedTensors(model.parameters()) as saved:`.

    Put the forward pass or both passes inside. Views of one tensor share its storage, which counts
    once.

    Args:
        weights: tensors that do not count, because they are in memory anyway.

    Attributes:
        now: bytes of the storages that are saved at the moment.
        peak: the largest value of `now` so far.
    """

    def __init__(self, weights: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(self._pack, lambda saved: saved.tensor)
        self.now = self.peak = 0
        self._alive: dict[int, dict[int, torch.Tensor]] = {}  # saved tensors by ID, by storage
        # The garbage collector may drop a tensor while this thread counts another.
        self._lock = threading.RLock()
        self._weights = {weight.untyped_storage().data_ptr(): weight for weight in weights}

    def __enter__(self) -> SavedTensors:
        super().__enter__()
        return self

    def tensors(self) -> list[torch.Tensor]:
        """Return the largest tensor of each storage that is saved now, without single numbers."""
        with self._lock:
            largest = [max(users.values(), key=lambda one: one.nbytes)
                       for users in self._alive.values()]
        return [tensor for tensor in largest if tensor.numel() > 1]

    def _pack(self, tensor: torch.Tensor) -> _SavedTensor:
        # Detached, because a result that its own operation saves would keep itself alive.
        return _SavedTensor(self, tensor.detach())

    def _add(self, saved: _SavedTensor) -> None:
        storage = saved.tensor.untyped_storage()
        if storage.data_ptr() in self._weights:
            return
        with self._lock:
            users = self._alive.setdefault(storage.data_ptr(), {})
            if not users:
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
            users[id(saved)] = saved.tensor

    def _remove(self, saved: _SavedTensor) -> None:
        storage = saved.tensor.untyped_storage()
        if storage.data_ptr() in self._weights:
            return
        with self._lock:
            users = self._alive[storage.data_ptr()]
            del users[id(saved)]
            if not users:
                del self._alive[storage.data_ptr()]
                self.now -= storage.nbytes()


class _SavedTensor:
    """A saved tensor, which counts until autograd releases it."""

    def __init__(self, counter: SavedTensors, tensor: torch.Tensor) -> None:
        self.counter, self.tensor = counter, tensor
        counter._add(self)

    def __del__(self) -> None:
        self.counter._remove(self)


def show(f: Callable[..., torch.Tensor], *inputs: torch.Tensor,
         weights: Iterable[torch.Tensor] = ()) -> int:
    """Print the tensors that f(*inputs) saves for its backward pass, one per line.

    Args:
        f: the function to run.
        inputs: its arguments.
        weights: tensors that do not count.

    Returns:
        The bytes of all of them together.
    """
    with SavedTensors(weights) as saved:
        result = f(*inputs)  # its graph keeps the saved tensors alive while they are counted
    tensors = saved.tensors()
    del result
    for one in tensors:
        shape, dtype = "x".join(map(str, one.shape)), str(one.dtype).removeprefix("torch.")
        print(f"  {shape:>14} {dtype:8} {one.nbytes:>10,} bytes")
    total = sum(one.nbytes for one in tensors)
    print(f"  {'together':>14} {'':8} {total:>10,} bytes")
    return total
