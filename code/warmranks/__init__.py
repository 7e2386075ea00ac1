"""Start N ranks in a fraction of a second, from a fork server that has imported torch.

    values = run_ranks(function, 4, *arguments)      # one return value per rank
    records = record_ranks(function, 4, *arguments)  # the same, with each rank's communication

It is for tests and checks of code that needs real ranks: in a notebook, in pytest, and in the
grading sandbox, where importing torch in every rank would cost more than the code itself. It may
import torch, the standard library, and dill (for functions defined in a notebook), but none of our
packages. Begin with `server.py`, the caller's side. `forking.py` is the fork server, `manager.py`
watches one run, `rank.py` is one rank, and `failures.py` has the errors. `ranked.py` is a
process group whose calls go through `broker.py`, which records them and detects deadlocks, and
`warnings_once.py` prints what the ranks say.

A sandbox cannot be given a server from outside. The first call in a process starts one as its child
process, over a socket pair, so no file, port, or environment variable leads to it.
"""

from warmranks.failures import RankError, RanksDeadlock, RanksTimeout
from warmranks.records import CommunicationCall, RankRecord
from warmranks.server import (
    ForkServer,
    default_server,
    forget,
    load,
    preload,
    record_ranks,
    run_brokered,
    run_program,
    run_ranks,
    split,
)
from warmranks.warnings_once import shown_once

__all__ = ["CommunicationCall", "ForkServer", "RankError", "RankRecord", "RanksDeadlock",
           "RanksTimeout", "default_server", "forget", "load", "preload", "record_ranks",
           "run_brokered", "run_program", "run_ranks", "shown_once", "split"]
