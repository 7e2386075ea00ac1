"""How many bytes autograd keeps for the backward pass: activation memory, counted.

torch hands every tensor that an operation saves to a pair of hooks. Counting there works on any
device and sees nothing but activations, which a process's resident memory cannot tell apart.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks


class SavedTensors(saved_tensors_hooks):
    """`with SavedTensors(model.parameters()) as saved:` around the forward, or around both passes.

    saved.now, saved.peak: bytes of distinct storages that are kept at the moment, and at most so
    far. `weights` are not counted: they are there anyway. Views of one tensor count once.
    """

    def __init__(self, weights: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(self._pack, lambda kept: kept.tensor)
        self.now = self.peak = 0
        self._users: Counter[int] = Counter()  # by storage: how many saved tensors lie in it
        # A tensor may be dropped by the garbage collector while this very thread counts another.
        self._lock = threading.RLock()
        self._weights = {weight.untyped_storage().data_ptr(): weight for weight in weights}

    def __enter__(self) -> SavedTensors:
        super().__enter__()
        return self

    def _pack(self, tensor: torch.Tensor) -> _Kept:
        # Detached: a result that its own operation saves would keep itself alive.
        return _Kept(self, tensor.detach())

    def _change(self, tensor: torch.Tensor, step: int) -> None:
        """One more (step 1) or one less (step -1) saved tensor lies in this one's storage."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key in self._weights:
            return
        with self._lock:
            before = self._users[key]
            self._users[key] += step
            if 0 in (before, self._users[key]):
                self.now += step * storage.nbytes()
                self.peak = max(self.peak, self.now)


class _Kept:
    """A saved tensor; counted until autograd lets go of it."""

    def __init__(self, saved: SavedTensors, tensor: torch.Tensor) -> None:
        self.saved, self.tensor = saved, tensor
        saved._change(tensor, 1)

    def __del__(self) -> None:
        self.saved._change(self.tensor, -1)
