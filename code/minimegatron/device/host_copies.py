"""Copies between a device's memory and the host's, on a stream of their own in each direction.

On the CPU, host memory is the device's own, and tensors are copied there at once. Virtual GPUs
model the time of the copies (device/virtual.py).

Only the flags that offload, and virtual GPUs, import this file.
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


class CudaHostCopies(HostCopies):
    """Copies between a CUDA device and pinned host memory.

    Each copy waits for the kernels so far, and whoever uses or frees its result waits for its
    event. So memory on the device needs no `record_stream`: when it is freed, the compute stream
    has waited for the copy, and all kernels that may get the memory come later on that stream.
    Pinned memory that is freed during a copy is not reused before the copy ends, because PyTorch
    records an event for it (ATen/cuda/CachingHostAllocator.h).
    """

    def __init__(self) -> None:
        self.down, self.up = torch.cuda.Stream(), torch.cuda.Stream()

    def zeros(self, elements: int) -> torch.Tensor:
        return torch.zeros(elements, pin_memory=True)

    def download(self, tensor: torch.Tensor) -> Copy:
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        return Copy(host, self._copy(self.down, host, tensor))

    def upload(self, tensor: torch.Tensor) -> Copy:
        on_device = torch.empty_like(tensor, device=torch.cuda.current_device())
        self.up.wait_stream(self.down)  # which may not have filled the tensor yet
        return Copy(on_device, self._copy(self.up, on_device, tensor))

    def overwrite(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        pinned = torch.empty(source.shape, dtype=target.dtype, pin_memory=True)
        return self._copy(self.up, target, pinned.copy_(source))

    def wait(self, arrives: torch.cuda.Event) -> None:
        torch.cuda.current_stream().wait_event(arrives)

    def host_waits(self, arrives: torch.cuda.Event) -> None:
        arrives.synchronize()

    @staticmethod
    def _copy(stream: torch.cuda.Stream, target: torch.Tensor, source: torch.Tensor
              ) -> torch.cuda.Event:
        """Start a copy after all kernels so far; return an event that occurs at its end."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()
