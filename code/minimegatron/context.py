"""The context that every component receives: configuration, grid, and device.

It is built once and passed on; nothing is global.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from minimegatron.arguments import Config
from minimegatron.console import emit
from minimegatron.parallel.grid import Grid, Group, groups_along, make_group

if TYPE_CHECKING:
    from minimegatron.device.device import Device


@dataclass(frozen=True)
class Context:
    """One rank's configuration, its place in the process grid, and its device."""

    config: Config
    grid: Grid
    device: Device

    def pipeline_group(self, *stages: int) -> Group | None:
        """Create a process group of these stages (default: all of them) of every pipeline.

        Every rank must call it. Returns None if this rank's stage is not one of `stages`.
        """
        grid, timeout = self.grid, timedelta(minutes=self.config.distributed_timeout_minutes)
        return make_group([tuple(ranks[stage] for stage in stages) or ranks for ranks in
                           groups_along("pp", grid.pp.size, grid.dp.size, grid.tp.size)],
                          self.device.backend, timeout)

    def read(self, tensor: torch.Tensor) -> float | None:
        """Wait for the device and return the value of a one-element tensor.

        Returns None on a virtual GPU, whose tensors have no values.
        """
        return self.device.read(tensor)

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Return a copy on this rank's device of a tensor on the host."""
        return values.to(self.device.torch_device, non_blocking=True)

    def print_rank_0(self, line: str) -> None:
        """Print a line from rank 0, once for the whole job."""
        if self.grid.rank == 0:
            emit(line)

    def print_rank_last(self, line: str) -> None:
        """Print a line from the last rank, which knows the loss in every layout."""
        if self.grid.is_last_rank:
            emit(line)
