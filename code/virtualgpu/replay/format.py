"""The format of a record, version 1: one JSON object for each rank.

    format, version     "virtualgpu record", 1
    rank, world         this rank, and how many the job has
    streams             names of streams; the first is the default stream
    groups              process groups that this rank used: {"name": ..., "ranks": [...]}
    operations          distinct operations (operations.py has their form)
    entries             what happened, in the order in which the host did it

Entries are lists that begin with a letter. OP, STREAM, and GROUP are indices of the lists above.
STORAGE counts the entries `a`, and COMM those of `c`, `p`, and `q`; PEER is an index among the
group's ranks. A MOMENT is two numbers: "STREAM INDEX" is when everything is done that the host had
launched on a stream before the entry with that index, and "-1 COMM" is the end of a communication.
RANGES are triples STORAGE, offset, bytes, in one flat list.

    m STREAM                        allocations that follow are of this stream's memory; without
                                    this entry, they are of the default stream's
    a BYTES                         allocate a storage
    x BYTES                         an allocation for which there was no memory
    f STORAGE                       free it
    r STORAGE BYTES                 resize it in place
    e                               empty the allocator's cache
    k OP STREAM PLACES              launch an operation; PLACES has STORAGE and offset in bytes of
                                    each tensor in turn, -1 0 for tensors in the host's memory
    d STREAM STORAGE OFFSET BYTES PINNED
                                    copy to the host's memory; PINNED is 1 if that is pinned and the
                                    copy is asynchronous, else 0
    w MOMENT STREAM SOURCE          a stream waits for an event that was recorded on SOURCE (or -1)
    v MOMENT STREAM                 a stream waits for a communication
    h MOMENT SOURCE                 the host waits for an event
    s                               the host waits for every stream
    l                               the host reads a few bytes
    z SECONDS                       the program sleeps
    c GROUP NAME WHAT STREAM RANGES RANGES SPLITS
                                    begin a collective; WHAT must be equal on all ranks. The first
                                    RANGES go in, the second come out. SPLITS: bytes for and from
                                    each rank, or empty
    p GROUP PEER STREAM RANGES      send
    q GROUP PEER RANGES             receive
    t COMM                          the ranks have told each other when a communication ends
"""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError

FORMAT, VERSION = "virtualgpu record", 1
HOST = -1  # in place of a storage
COMMUNICATION = NO_STREAM = -1  # in place of a stream

# Larger records are refused before anything else is looked at.
MOST_CHARACTERS = 256 * 2**20
MOST_ENTRIES, MOST_OPERATIONS, MOST_STREAMS, MOST_GROUPS = 3_000_000, 100_000, 10_000, 10_000
MOST_WORLD = 2**20
MOST_NAME = 2_000  # characters
MOST_BYTES = 2**50  # of one tensor or storage
MOST_SECONDS = 1e6  # that a program sleeps at a time


class BadRecord(VirtualGpuError):
    """Raised for a record that no run on a virtual GPU can have written.

    The message names the rank and the entry.
    """
