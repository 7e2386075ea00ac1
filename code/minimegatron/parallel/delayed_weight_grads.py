"""Weight gradients that wait for the W actions of a zero-bubble schedule (Qi et al. 2023).

Only a schedule with W actions imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minimegatron.parallel.ddp import DistributedDataParallel


class DelayedWeightGrads:
    """The delayed matrix multiplications of a model's weight gradients, by key."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self.by_key: dict[Hashable, list[Callable[[], None]]] = {}

    @contextmanager
    def delay(self, key: Hashable) -> Iterator[None]:
        """Delay the weight gradients of backward passes inside until `compute`."""
        self.ddp.delayed = self.by_key.setdefault(key, [])
        try:
            yield
        finally:
            self.ddp.delayed = None

    @torch.no_grad()
    def compute(self, key: Hashable) -> None:
        """Compute the weight gradients delayed under a key; KeyError if there are none."""
        for compute in self.by_key.pop(key):
            compute()
