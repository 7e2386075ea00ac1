"""Copies between a device's memory and the host's, on a stream of their own in each direction.

On the CPU, host memory is the device's own, and tensors are copied there at once. CUDA devices have
pinned memory (device/gpus.py), and virtual GPUs model the time of the copies (device/virtual.py).

Only the flags that offload, and GPUs, import this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class HostTraffic(NamedTuple):
    """Optimizer state that the host updates in a step.

    Attributes:
        pieces: elements of each piece; a piece is copied while the host updates another one.
        down: bytes per element that are copied to the host: gradients, and weights in fp32.
        up: bytes per element of the updated weights, which are copied back.
    """

    pieces: list[int]
    down: int
    up: int


class Copy(NamedTuple):
    """A copy that may still be on its way.

    Attributes:
        tensor: the destination. Wait for the copy before using it.
        arrives: an event that `HostCopies.wait` understands.
    """

    tensor: torch.Tensor
    arrives: Any


class HostCopies:
    """Starts copies; the program and the device's kernels go on meanwhile."""

    def start_update(self, traffic: HostTraffic) -> None:
        """Model the copies of gradients to the host, after all kernels so far."""
        return

    def update(self, traffic: HostTraffic) -> None:
        """Model Adam on the host, piece by piece, and the copies of the updated weights."""
        return

    def zeros(self, elements: int) -> torch.Tensor:
        """Allocate optimizer state in host memory, fp32 [elements]."""
        return torch.zeros(elements)

    def download(self, tensor: torch.Tensor) -> Copy:
        """Start to copy a tensor to the host, after all kernels so far."""
        return Copy(tensor.clone(), None)

    def upload(self, tensor: torch.Tensor) -> Copy:
        """Allocate a tensor's memory on the device, and start to copy it there from the host."""
        return Copy(tensor.clone(), None)

    def overwrite(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Start to copy a tensor from the host over one on the device, after all kernels so far.

        Returns an event, as in Copy. Elements are rounded to the target's dtype.
        """
        target.copy_(source)

    def wait(self, arrives: Any) -> None:
        """Make all later kernels wait until a copy has arrived."""
        return

    def host_waits(self, arrives: Any) -> None:
        """Make the program wait until a copy has arrived."""
        return
