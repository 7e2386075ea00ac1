"""Results of ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_map

from virtualgpu.core.assumptions import Assumption
from virtualgpu.export import measures
from virtualgpu.pytorch.assumptions import Answer
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import Space, hidden, space_of


@dataclass
class Rank:
    """One rank of a finished run.

    Attributes:
        rank: its number in the job.
        value: what the function returned; None for a script.
        error: type and text of the exception that ended it; None where it succeeded.
        message: the error as it is printed, with its traceback where it is the program's own.
        seconds: virtual time from its start to its end.
        exposed: seconds in which the compute stream only waited for communication.
        peak: bytes of memory allocated at the peak.
        busy: seconds by operation.
        reserved: bytes that PyTorch reserved at the peak.
        assumptions: what was taken for granted, and how often.
        unused: the user's answers (--assume) that no line asked for.
        unknown: calls by operation that have no cost rule.
        unknown_share: their share of the kernels' time.
        status: exit status of the process.
        record: of what it did, for virtualgpu.replay; None where none was asked for.
        account: all of this in detail, as --json writes it (export/measures.py).
    """

    rank: int = 0
    value: object = None
    error: str | None = None
    seconds: float = 0.0
    exposed: float = 0.0
    peak: int = 0
    busy: dict[str, float] = field(default_factory=dict)
    reserved: int = 0
    assumptions: dict[Assumption, int] = field(default_factory=dict)
    unused: tuple[Answer, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    unknown_share: float = 0.0
    status: int = 0
    record: str | None = None
    account: dict | None = None
    message: str | None = None


def measure(gpu: CudaGpu, rank: int, value: object = None, error: str | None = None) -> Rank:
    """The result of this process, once its program is over.

    Args:
        gpu: with the ledger that was kept, if any.
        rank: its number in the job.
        value: what the program returned.
        error: what ended it; its objects must still exist, for their memory to be told apart.
    """
    ledger = gpu.ledger
    if ledger is not None:
        ledger.stop()
        if ledger.traced is not None:
            if ledger.traced.recorder.full:
                gpu.assumptions.note("the traces are truncated: they hold only the first "
                                     f"{ledger.traced.recorder.most} operations and allocations")
            ledger.traced.write()
    return Rank(
        rank=rank, value=portable(gpu, value), error=error, seconds=gpu.now(), exposed=gpu.exposed,
        peak=gpu.memory.run_peak, busy=dict(gpu.busy), reserved=gpu.memory.run_peak_reserved,
        assumptions=dict(gpu.assumptions.made), unused=tuple(gpu.assumptions.unused()),
        unknown=dict(gpu.unknown), unknown_share=gpu.unknown_share,
        record=None if gpu.journal is None else gpu.journal.finish(),
        account=None if ledger is None else measures.measure(ledger, rank, error))


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
