"""The context that every component receives, the micro-batches, and the progress of a run.

They are passed on; nothing is global.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minimegatron.arguments import Config
from minimegatron.device.device import Device
from minimegatron.dropout import Dropout
from minimegatron.errors import emit
from minimegatron.grid import Grid


@dataclass(frozen=True)
class Context:
    """One rank's configuration, its place in the process grid, and its device."""

    config: Config
    grid: Grid
    device: Device

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


@dataclass(frozen=True)
class MicroBatch:
    """The input of one forward pass.

    Attributes:
        tokens: int64 [b, s]; None on stages between the first and the last.
        labels: int64 [b, s], the tokens shifted by one; None like `tokens`.
        loss_mask: fp32 [b, s], 0 for tokens that do not count in the loss; None like `tokens`.
        dropout: draws the dropout masks; None turns dropout off.
        first_position: the position in its sequence of each sample's first token.
    """

    tokens: torch.Tensor | None
    labels: torch.Tensor | None
    loss_mask: torch.Tensor | None
    dropout: Dropout | None
    first_position: int = 0


@dataclass
class Progress:
    """Progress of a run, which a checkpoint saves and a resumed run restores.

    Attributes:
        iteration: optimizer steps, including skipped ones.
        consumed_train_samples: samples drawn from the training data.
        consumed_valid_samples: samples drawn from the validation data.
    """

    iteration: int = 0
    consumed_train_samples: int = 0
    consumed_valid_samples: int = 0


def params_dtype(config: Config) -> torch.dtype:
    """Return the dtype of the model's parameters and activations."""
    return getattr(torch, config.params_type)


def grads_dtype(config: Config) -> torch.dtype:
    """Return the dtype in which gradients are accumulated and all-reduced."""
    reduced_in_fp16 = config.fp16 and not config.accumulate_allreduce_grads_in_fp32
    return torch.float16 if reduced_in_fp16 else torch.float32
