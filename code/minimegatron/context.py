"""What every part of the trainer is handed: configuration, grid, device. Built once, no globals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch

from minimegatron.arguments import Config
from minimegatron.console import emit
from minimegatron.device import Device
from minimegatron.grid import Grid, Group, groups_along, make_group


@dataclass(frozen=True)
class Context:
    config: Config
    grid: Grid
    device: Device

    def pipeline_group(self, *stages: int) -> Group | None:
        """A new channel between these stages of this rank's pipeline (all, when none is named);
        None where this rank's stage is not among them. Every rank must call it."""
        grid, config = self.grid, self.config
        chosen = [tuple(ranks[stage] for stage in stages) or ranks
                  for ranks in groups_along("pp", grid.pp.size, grid.dp.size, grid.tp.size)]
        patience = timedelta(minutes=config.distributed_timeout_minutes)
        return make_group(chosen, self.device.backend, patience)

    def read(self, tensor: torch.Tensor) -> float | None:
        """The value of a one-element tensor: waits for the device; None where there is none."""
        return self.device.read(tensor)

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """`values` (made on the host) on this rank's device."""
        return values.to(self.device.torch_device, non_blocking=True)

    def say(self, line: str) -> None:
        """Print once for the whole job."""
        if self.grid.rank == 0:
            emit(line)

    def say_last(self, line: str) -> None:
        """Print from the rank that knows the loss in every layout."""
        if self.grid.is_last_rank:
            emit(line)
