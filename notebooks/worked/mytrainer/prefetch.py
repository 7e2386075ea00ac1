"""ZeRO stage 3 whose all-gathers overlap with computation."""

import torch.distributed as dist
from mytrainer.zero3 import Zero3


class Prefetching(Zero3):
    """Zero3 that gathers the parameters of the next block while a block runs."""

    def __init__(self, module, blocks):
        self.gathers = {}  # units on their way, and the work to wait for
        super().__init__(module, blocks)

    def need(self, unit):
        """Wait for a unit's parameters, and start to gather those that are needed after it."""
        self._start(unit)
        if unit in self.gathers:
            self.gathers.pop(unit).wait()
        following = -1  # the index of the block that runs next
        if unit in self.blocks:
            following = self.blocks.index(unit)
        following += -1 if self.backward else 1
        if 0 <= following < len(self.blocks):
            self._start(self.blocks[following])

    def _start(self, unit):
        if unit not in self.present:
            self.allocate(unit)
            self.gathers[unit] = dist.all_gather_single(unit.buffer, unit.shard, async_op=True)
