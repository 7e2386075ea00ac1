"""A record of what a program did on a virtual GPU, and its price, worked out in another process.

    journal = Journal(gpu, rank, world)          # in the process that runs foreign code
    program()
    text = journal.finish()                      # plain JSON

    priced = price(records, topology)            # in a process that you trust
    require(priced, flops=..., live=...)

A record contains kernels with their operands' shapes, allocations, collectives, and waits: no time
and no cost. `price` derives both again, on the GPU and the links that the caller names. Whoever
tampers with the clock, the cost rules, or the GPU's figures in the first process therefore changes
nothing.

What a record proves: *if* a program did this, it would take this long on such GPUs. Operands must
lie in memory that is allocated, results must have the shapes that follow from the operands (where
shapes.py has a rule), ranks must call matching collectives, and no kernel may use a buffer while a
collective is still writing it. What it does not prove: that the program did this. The process that
runs foreign code can leave out, shrink, or invent operations. So `require` refuses a record that
claims less than the task needs, and the values must be checked separately, on real ranks. Kernels
on different streams are priced as if they did not slow each other down, and the order of kernels on
different streams is not compared with what they read and write.

journal.py writes a record, and operations.py describes operations in it. reading.py reads and
validates one; it accepts only what format.py allows. player.py repeats one rank on a fresh virtual
GPU, exchange.py matches what ranks tell each other, and bounds.py compares the sums with lower
bounds. Builds on core and net.
"""

from virtualgpu.replay.bounds import TooLittle, require
from virtualgpu.replay.errors import BadRecord
from virtualgpu.replay.journal import Journal
from virtualgpu.replay.pricing import Priced, price
from virtualgpu.replay.reading import Record, read

__all__ = ["BadRecord", "Journal", "Priced", "Record", "TooLittle", "price", "read", "require"]
