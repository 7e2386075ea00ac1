"""What a rank leaves behind."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_map

from virtualgpu.core.assumptions import Assumption
from virtualgpu.export import measures
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import Space, hidden, space_of


@dataclass
class Rank:
    """One rank of a finished run.

    Attributes:
        value: what the function returned; None for a script.
        error: type and text of the exception that ended it; None where it succeeded.
        message: the error as it is printed, with its traceback where it is the program's own.
        seconds: virtual time from its start to its end.
        exposed: seconds in which the compute stream only waited for communication.
        peak: bytes of memory allocated at the peak.
        busy: seconds by operation.
        reserved: bytes that PyTorch reserved at the peak.
        assumptions: what was taken for granted, and how often.
        unknown: calls by operation that have no cost rule.
        unknown_share: their share of the kernels' time.
        status: exit status of the process.
        record: of what it did, for virtualgpu.replay; None where none was asked for.
        account: all of this in detail, as --json writes it (export/measures.py).
    """

    value: object = None
    error: str | None = None
    seconds: float = 0.0
    exposed: float = 0.0
    peak: int = 0
    busy: dict[str, float] = field(default_factory=dict)
    reserved: int = 0
    assumptions: dict[Assumption, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unknown_share: float = 0.0
    status: int = 0
    record: str | None = None
    account: dict | None = None
    message: str | None = None


def measure(gpu: CudaGpu, value: object = None, error: str | None = None) -> Rank:
    """The result of this process, once its program is over.

    Args:
        gpu: with the ledger that was kept, if any.
        value: what the program returned.
        error: what ended it; its objects must still exist, for their memory to be told apart.
    """
    ledger, rank = gpu.ledger, int(os.environ.get("RANK", 0))
    if ledger is not None:
        ledger.stop()
        if ledger.traced is not None:
            if ledger.traced.recorder.full:
                gpu.assumptions.note("the traces are truncated: they hold only the first "
                                     f"{ledger.traced.recorder.most} operations and allocations")
            ledger.traced.write()
    seconds = gpu.now()
    busy: dict[str, float] = dict(gpu.busy)
    guessed = sum(busy.get(name, 0.0) for name in gpu.unknown)
    waited = gpu.exposed if isinstance(gpu.exposed, float) else defaultdict(
        float, gpu.exposed)["compute"]
    found = Rank(portable(gpu, value), error, seconds, waited, gpu.memory.peak, busy,
                 gpu.memory.peak_reserved, dict(gpu.assumptions.made), dict(gpu.unknown),
                 guessed / gpu.computing if gpu.computing else 0.0)
    found.record = gpu.journal.finish() if gpu.journal is not None else None
    if ledger is not None:
        found.account = measures.measure(ledger, rank, error)
    return found


def portable(gpu: CudaGpu, value: object) -> object:
    """The same value for a process without virtual GPUs: tensors become the CPU's, or meta tensors
    where their values are unknown."""
    def one(item: object) -> object:
        if not isinstance(item, torch.Tensor):
            return item
        item = item.detach()
        space = space_of(gpu, item)
        if space is None:
            return item
        if space is Space.GPU and gpu.values.known(item):
            return gpu.values.value(item).clone()
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")

    with hidden:
        return tree_map(one, value)
