"""Start N gloo ranks in a fraction of a second, from a fork server that has imported torch.

    values = run_ranks(function, 4, *arguments)      # [function's return value on each rank]
    records = record_ranks(function, 4, *arguments)  # the same, with what each communicated

What it is for: tests and checks of code that needs real ranks, in a notebook, in pytest, and inside
the grading sandbox, where importing torch in every rank would cost more than the code itself. What
it may import: torch and the standard library (and dill, for functions defined in a notebook); it is
below all other packages. Where to begin: `server.py` is the caller's side, `forking.py` the server,
`manager.py` watches one run, `rank.py` is what happens in a rank, and `failures.py` has the errors.
`recorder.py` is the process group that records, and `waiting.py` finds deadlocks.

A sandbox gets no server from outside: the first call in a process starts one there, as a child
process that shares a socket pair with it. No file, port or environment variable leads to it.
"""

from warmranks.failures import RankError, RanksDeadlock, RanksTimeout
from warmranks.records import Call, Record
from warmranks.server import (
    ForkServer,
    default_server,
    load,
    preload,
    record_ranks,
    run_program,
    run_ranks,
    split,
)
from warmranks.waiting import waiting

__all__ = ["Call", "ForkServer", "RankError", "RanksDeadlock", "RanksTimeout", "Record",
           "default_server", "load", "preload", "record_ranks", "run_program", "run_ranks",
           "split", "waiting"]
