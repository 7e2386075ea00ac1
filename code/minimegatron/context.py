"""The context that every component receives: configuration, grid, and device.

It is built once and passed on; nothing is global."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from minimegatron.arguments import Config
from minimegatron.console import emit

if TYPE_CHECKING:
    from minimegatron.device.device import Device
    from minimegatron.parallel.grid import Grid, Group


@dataclass(frozen=True)
class Context:
    config: Config
    grid: Grid
    device: Device

    def pipeline_group(self, *stages: int) -> Group | None:
        """Create a process group of these stages of this rank's pipeline (default: all of them).

        Every rank must call it. Returns None if this rank's stage is not one of `stages`.
        """
        timeout = timedelta(minutes=self.config.distributed_timeout_minutes)
        return self.grid.pipeline_group(stages, self.device.backend, timeout)

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
