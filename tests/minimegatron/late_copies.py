"""A stand-in for torch.cuda's streams on CPU tensors, where copies are as late as they may be.

Kernels of the compute stream run at once. A copy on another stream runs when somebody waits for it,
and reads and writes what is there at that time. So a program that does not wait, that frees memory
too early, or that overwrites it reads wrong values here, as it might on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minimegatron import offload
from minimegatron.device.device import CpuDevice
from minimegatron.device.gpus import CudaHostCopies

copy_now, empty, empty_like = torch.Tensor.copy_, torch.empty, torch.empty_like
PIECE = 64  # elements, so that small models have several pieces of optimizer state


class FreedEarly(Exception):
    """Memory was freed on the device before a copy that reads or writes it was waited for."""


class Stream:
    """A stream; `queue` has the copies that nobody has waited for yet."""

    def __init__(self) -> None:
        self.queue, self.done, self.has_waited = [], 0, False

    def wait_stream(self, other: Stream) -> None:
        if other is compute:
            self.has_waited = True
        else:
            self.queue.append(other.record_event().synchronize)

    def wait_event(self, event: Event) -> None:
        assert self is compute
        event.synchronize()

    def record_event(self) -> Event:
        return Event(self, len(self.queue))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy later; a copy that does not wait for the kernels so far reads garbage."""
        if not self.has_waited:
            source = torch.full_like(source, float("nan"))
        self.has_waited = False
        reference = Reference(target), Reference(source)
        self.queue.append(lambda: copy_now(*(one.tensor() for one in reference)))


class Event:
    """The end of a stream's first `count` entries."""

    def __init__(self, stream: Stream, count: int) -> None:
        self.stream, self.count = stream, count

    def synchronize(self) -> None:
        stream = self.stream
        while stream.done < self.count:
            stream.done += 1
            stream.queue[stream.done - 1]()


class Reference:
    """A tensor whose memory is freed when the program frees it, unless it is pinned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.memory = StorageWeakRef(tensor.untyped_storage())
        self.place = tensor.storage_offset(), tensor.shape, tensor.stride()
        self.dtype, self.pinned = tensor.dtype, tensor if hasattr(tensor, "pinned") else None

    def tensor(self) -> torch.Tensor:
        if self.memory.expired():
            raise FreedEarly
        storage = torch.UntypedStorage._new_with_weak_ptr(self.memory.cdata)
        return empty(0, dtype=self.dtype).set_(storage, *self.place)


compute = Stream()


@contextmanager
def late_copies() -> Iterator[None]:
    """Replace torch.cuda's streams, and copies on them."""
    current = [compute]

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    def copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
              ) -> torch.Tensor:
        if current[-1] is compute:
            return copy_now(self, source)
        assert non_blocking
        current[-1].copy(self, source)
        return self

    def garbage(make: object, *given: object, pin_memory: bool = False, **options: object
                ) -> torch.Tensor:
        tensor = make(*given, **options)
        if pin_memory:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 1).pinned = True
        return tensor

    with (patch.multiple(torch.cuda, Stream=Stream, stream=on, current_stream=lambda: current[-1],
                         current_device=lambda: "cpu"),
          patch.object(torch.Tensor, "copy_", copy_), patch.object(offload, "PIECE", PIECE),
          patch.object(torch, "empty", lambda *given, **options: garbage(empty, *given, **options)),
          patch.object(torch, "empty_like",
                       lambda *given, **options: garbage(empty_like, *given, **options)),
          patch.object(CudaHostCopies, "zeros", lambda self, elements: torch.zeros(elements))):
        yield


class StreamsDevice(CpuDevice):
    """The CPU, with the copies of a CUDA device."""

    def host_copies(self) -> CudaHostCopies:
        return CudaHostCopies()
