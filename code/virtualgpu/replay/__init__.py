"""Record a program's run on a virtual GPU, and price the record in another process.

    journal = Journal(gpu, rank, world)          # in the process that runs foreign code
    program()
    text = journal.finish()                      # plain JSON

    priced = price(records, topology)            # in a trusted process
    require(priced, flops=..., live=...)

A record contains kernels with their operands' shapes, allocations, collectives, and waits, but no
times and no costs. `price` recomputes both on the GPU and the links that the caller names. So
tampering with the clock, the cost rules, or the GPU's figures in the first process has no effect.

What a record proves: *if* a program did this, it would take this long on such GPUs. It does not
prove that the program did this, because the process that runs foreign code can leave out, shrink,
or invent operations. The trusted side therefore refuses, each with an error that names the rank and
the entry or the operation:

    read_record
            (BadRecord) anything but strict JSON in the format of format.py: unknown or repeated
            members, NaN and infinity, negative, fractional, or huge sizes and counts, too many
            entries, times (only `z`, how long the program sleeps, has one, which must not be
            negative); operations that are not in a closed list, and those that launch no kernel;
            operands that do not fit together, such as a matmul of [2, 3] and [4, 2], and results
            that torch would not return for them (core/rules)
    price   (BadRecord) memory that is not allocated, too small, freed twice, or still in use by a
            collective; an out-of-memory error where there was room; waits for something later;
            collectives, sends, and receives that do not match between ranks; deadlocks;
            communication that never completes; ranks that occur twice, or another world size
    require (TooLittle) fewer FLOPs in the task's dtype, fewer bytes moved or communicated, or less
            live memory at the peak than the task needs, on any rank

The caller must check the values separately, on real ranks; decide which ranks must have a record,
since ranks without one count as symmetric to those with one; and set a time limit, because a record
of the largest size takes long to price. The shapes of results that depend on
values, such as those of nonzero, are not checked. Kernels on different streams are priced as
if they did not slow each other down, and the order of kernels on different streams is not compared
with what they read and write.

Nothing that a record names is executed: tensors are core.operand.Operands, and the rules for the
operations' results are functions of integers and dtypes.

journal.py writes a record, and operations.py describes operations in it. reading.py reads and
validates a record; core/rules derives what its operations return. player.py replays one rank on a
new virtual GPU, exchange.py matches the ranks' communication, and bounds.py compares the sums with
lower bounds. Builds on core and net.
"""

from __future__ import annotations

import importlib
from typing import Any

# Imported on first use: the bounds need no torch, and the rest does.
PLACES = {"BadRecord": "format", "Journal": "journal", "Priced": "bounds", "Record": "reading",
          "TooLittle": "bounds", "price": "pricing", "read_record": "reading", "require": "bounds"}
__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"virtualgpu.replay.{PLACES[name]}"), name)
