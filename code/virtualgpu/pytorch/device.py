"""The process's GPU as cuda:INDEX, and the memory that holds each of the program's tensors."""

from __future__ import annotations

import weakref
from functools import partial

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import VirtualGpu, program_line
from virtualgpu.core.memory import pytorch_2_message
from virtualgpu.pytorch.assumptions import Decisions
from virtualgpu.pytorch.values import LIMIT, Values
from virtualgpu.pytorch.visible import (
    CPU,
    PLAIN_TYPES,
    Space,
    inner,
    key_of,
    real_device,
    real_is_meta,
)


class CudaDevice(VirtualGpu):
    """A virtual GPU that knows which tensors are in its memory, and which in the host's.

    Attributes:
        current: the number of the process's current GPU; None until it calls torch.cuda.set_device,
            and torch.cuda.current_device() then returns 0, as on CUDA.
        values: the values of small tensors.
        on_host: storages in the host's memory without values.
        own: storages of meta tensors that the program asked for.
        pinned: storages in pinned memory of the host.
    """

    def __init__(self, card: Card, index: int = 0, count: int = 1, limit: int = LIMIT,
                 assumptions: Decisions | None = None, typical: float | None = None) -> None:
        """Create a virtual GPU.

        Args:
            card: the GPU model.
            index: its number on this node.
            count: number of GPUs on this node.
            limit: bytes of the largest tensor whose values are computed.
            assumptions: values that the user supplies for others (--assume).
            typical: what a few numbers of large tensors are assumed to be; None: unknown.
        """
        super().__init__(card)
        self.index, self.count, self.device = index, count, torch.device("cuda", index)
        self.current: int | None = index
        self.memory.message = partial(pytorch_2_message, index=index)
        self.assumptions = assumptions or Decisions()
        self.values = Values(limit, self.assumptions, typical)
        self.on_host: set[int] = set()
        self.own: set[int] = set()
        self.pinned: set[int] = set()

    def hold_on_host(self, tensor: torch.Tensor) -> None:
        """Mark a meta tensor as being in the host's memory."""
        remember(tensor, self.on_host)

    def wait_for_stream(self) -> None:
        """Make the host wait for the current stream and read a few bytes."""
        self.clock.host_waits(self.clock.ready(self.stream), self.stream)
        self.read_latency()

    def own_device(self, device: torch.device) -> torch.device:
        """Return this GPU's device, which a program names with or without its index.

        Raises:
            torch.AcceleratorError: the node has no such GPU, as on CUDA.
            NoValue: the GPU is another rank's.
        """
        self.check(device)
        if device.index not in (None, self.index):
            raise NoValue(f"{program_line()} uses {device}, but this process has cuda:{self.index} "
                          "only: virtual GPUs run one process per GPU; use the device "
                          "\"cuda\", or the index LOCAL_RANK")
        return self.device

    def check(self, device: torch.device) -> None:
        """Raise torch.AcceleratorError, as CUDA does, if the node has no such GPU."""
        if device.index is not None and device.index >= self.count:
            raise torch.AcceleratorError(f"CUDA error: invalid device ordinal ({device.index}; "
                                         f"this node has {self.count})")


def space_of(gpu: CudaDevice, tensor: torch.Tensor) -> Space | None:
    """Return the memory that holds a tensor, or None if C++ has its values."""
    if not real_is_meta(tensor):
        return Space.HOST if gpu.values.lost and is_lost(gpu, tensor) else None
    if type(tensor) not in PLAIN_TYPES:
        local = inner(tensor)
        if local is not None:
            return space_of(gpu, local)
    try:
        key = key_of(tensor)
    except (NotImplementedError, RuntimeError):
        if torch._C._has_storage(tensor):
            raise
        return Space.GPU  # a wrapper
    if key in gpu.blocks:
        return Space.GPU
    if key in gpu.on_host:
        return Space.HOST
    # Tensors that torch created inside an operation belong to the GPU.
    return Space.OWN if key in gpu.own else Space.GPU


def is_lost(gpu: CudaDevice, tensor: torch.Tensor) -> bool:
    """Return whether unknown values were written to a CPU tensor."""
    local = None if type(tensor) in PLAIN_TYPES else inner(tensor)
    holder = tensor if local is None else local
    try:
        return key_of(holder) in gpu.values.lost
    except (NotImplementedError, RuntimeError):
        if torch._C._has_storage(holder):
            raise
        return False  # a wrapper


def device_of(gpu: CudaDevice, tensor: torch.Tensor) -> torch.device:
    """Return the device that the program sees."""
    space = space_of(gpu, tensor)
    if space is Space.GPU:
        return gpu.device
    return CPU if space is Space.HOST else real_device(tensor)


def remember(tensor: torch.Tensor, storages: set[int]) -> None:
    """Add the tensor's storage to a set for as long as it lives."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in storages:
        storages.add(key)
        weakref.finalize(storage, storages.discard, key).atexit = False
