"""The memory of a virtual GPU: each tensor storage is allocated there for as long as it lives."""

from __future__ import annotations

import weakref
from typing import Protocol

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from virtualgpu.core.card import Card
from virtualgpu.core.memory import Allocator, OutOfMemory
from virtualgpu.core.segments import MemoryBlock


class Watcher(Protocol):
    """What is notified of every allocation, release, and resize, after the allocator."""

    def allocated(self, key: int, size: int, block: int) -> None:
        """A storage of `size` bytes has a block of `block` bytes."""

    def released(self, key: int, block: int) -> None:
        """A storage's block of `block` bytes is free."""

    def resized(self, key: int, size: int, freed: int, block: int) -> None:
        """A storage has a new block; `freed` bytes of the old one are free."""


def active_card() -> Card:
    """Return the model of the virtual GPU that is active. Raises RuntimeError if none is."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, Storages):
            return mode.card
    raise RuntimeError("no virtual GPU is active; enter one: with VirtualGpu(card): ...")


class Storages:
    """Allocates memory for the storages on one GPU and frees it with them."""

    stream: str  # the current stream, which owns new allocations

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card = card
        self.memory = Allocator(card.memory, card.context)
        self.blocks: dict[int, MemoryBlock] = {}  # the memory of live storages, by identity
        self.journal: Watcher | None = None  # while a record is written (replay/journal.py)
        self.ledger: Watcher | None = None  # while steps are accounted for (export/ledger.py)
        self.recorder: Watcher | None = None  # while a trace is recorded (export/trace.py)

    def allocate_outside(self, size: int) -> None:
        """Allocate memory outside of PyTorch. Raises torch.OutOfMemoryError."""
        try:
            self.memory.allocate_outside(size)
        except OutOfMemory as error:
            raise self._out_of_memory(error) from None

    def allocate(self, size: int) -> MemoryBlock:
        """Allocate memory that the caller releases. Raises torch.OutOfMemoryError."""
        try:
            return self.memory.allocate(size, self.stream)
        except OutOfMemory as error:
            if self.journal is not None:
                self.journal.refused(size)
            raise self._out_of_memory(error) from None

    def hold(self, tensor: torch.Tensor) -> None:
        """Allocate the tensor's memory until its storage dies. Raises torch.OutOfMemoryError."""
        self.hold_storage(tensor.untyped_storage())

    def hold_storage(self, storage: torch.UntypedStorage) -> None:
        """Allocate a storage's memory until it dies. Raises torch.OutOfMemoryError."""
        key = storage._cdata
        if key in self.blocks:
            return
        size = storage.nbytes()
        block = self.blocks[key] = self.allocate(size)
        for watcher in (self.journal, self.ledger, self.recorder):
            if watcher is not None:
                watcher.allocated(key, size, block.size)
        weakref.finalize(storage, self.release, key).atexit = False

    def release(self, key: int) -> None:
        """Release a storage's memory."""
        block = self.blocks.pop(key)
        size = block.size  # release may merge the block with its neighbors
        self.memory.release(block)
        for watcher in (self.journal, self.ledger, self.recorder):
            if watcher is not None:
                watcher.released(key, size)

    def resize(self, key: int, size: int) -> None:
        """Reallocate a storage that is resized in place. Raises torch.OutOfMemoryError."""
        before, block = self.blocks[key], self.allocate(size)
        freed = before.size
        self.memory.release(before)
        self.blocks[key] = block
        for watcher in (self.journal, self.ledger, self.recorder):
            if watcher is not None:
                watcher.resized(key, size, freed, block.size)

    def empty_cache(self) -> None:
        """Return unused segments to CUDA."""
        self.memory.release_cached()
        if self.journal is not None:
            self.journal.note("e")

    def _out_of_memory(self, error: OutOfMemory) -> torch.OutOfMemoryError:
        return torch.OutOfMemoryError(f"{error} [virtual {self.card.name}]")
