"""The result of a rank."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_map

from virtualgpu.core.assumptions import Assumption
from virtualgpu.export import measures
from virtualgpu.pytorch.assumptions import AssumedValue
from virtualgpu.pytorch.device import space_of
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import Space, hidden


@dataclass
class Rank:
    """One rank of a finished run.

    Attributes:
        rank: the rank in the job.
        value: the function's return value; None for a script.
        error: type and text of the exception that ended it; None if it succeeded.
        message: the error to print, with a traceback if the program raised it.
        seconds: virtual time from its start to its end.
        exposed: exposed communication of the compute stream, in seconds.
        peak: bytes of memory allocated at the peak.
        busy: kernel and communication time, in seconds by operation.
        reserved: bytes that PyTorch reserved at the peak.
        assumptions: the assumptions of the run, and how often each was made.
        unused: the user's values (--assume) that no line needed.
        unknown: number of calls of operations without a cost rule, by operation.
        unknown_share: their share of the kernels' time.
        status: exit status of the process.
        record: its record for virtualgpu.replay, if one was requested.
        account: the figures that --json writes (export/measures.py).
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
    unused: tuple[AssumedValue, ...] = ()
    unknown: dict[str, int] = field(default_factory=dict)
    unknown_share: float = 0.0
    status: int = 0
    record: str | None = None
    account: dict | None = None
    message: str | None = None


def measure(gpu: CudaGpu, rank: int, value: object = None, error: str | None = None) -> Rank:
    """Return the result of this process after its program has ended.

    The program's objects must still exist, since the memory report labels them.

    Args:
        gpu: this process's virtual GPU.
        rank: the rank in the job.
        value: the program's return value.
        error: the error that ended it, or None.
    """
    ledger, tokens = gpu.ledger, gpu.values.tokens
    if tokens is not None and tokens.last is not None and not tokens.used:
        gpu.assumptions.note(f"--output-tokens {tokens.last} had no effect: the program never "
                             "compares a token that was not computed, so it decides on its own "
                             "when to stop")
    if ledger is not None:
        ledger.stop()
        traced = gpu.trace_files
        if traced is not None:
            if traced.recorder.full:
                gpu.assumptions.note("the traces are truncated: they hold only the first "
                                     f"{traced.recorder.most} operations and allocations")
            traced.write()
    return Rank(
        rank=rank, value=portable(gpu, value), error=error, seconds=gpu.now(), exposed=gpu.exposed,
        peak=gpu.memory.run_peak, busy=dict(gpu.busy), reserved=gpu.memory.run_peak_reserved,
        assumptions=dict(gpu.assumptions.counts), unused=tuple(gpu.assumptions.unused()),
        unknown=dict(gpu.unknown), unknown_share=gpu.unknown_share,
        record=None if gpu.journal is None else gpu.journal.finish(),
        account=None if ledger is None else measures.measure(ledger, rank, error))


def portable(gpu: CudaGpu, value: object) -> object:
    """Return the value for a process without virtual GPUs.

    GPU tensors become CPU tensors, or meta tensors if their values are unknown.
    """
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
