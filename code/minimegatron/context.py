"""What every part of the trainer is handed: configuration, grid, device. Built once, no globals."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minimegatron.arguments import Config
from minimegatron.console import emit
from minimegatron.device import Device
from minimegatron.grid import Grid


@dataclass(frozen=True)
class Context:
    config: Config
    grid: Grid
    device: Device

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
