"""A run of the trainer in which one rank fails alone: torchrun failing_rank.py HOW FLAGS

HOW: error (rank 1 cannot go on), death (rank 1 is killed), silence (rank 1 stops answering), stop
(rank 1 is stopped, all its threads).
"""

from __future__ import annotations

import os
import signal
import sys
import time

from minimegatron.batches import Batches
from minimegatron.errors import UserError
from minimegatron.main import main

step = Batches.step


def fail(self: Batches, consumed: int, *others: object, **more: object) -> list:
    if os.environ["RANK"] == "1" and consumed > 0:
        if sys.argv[1] == "error":
            raise UserError("this rank cannot go on")
        if sys.argv[1] == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)
    return step(self, consumed, *others, **more)


if __name__ == "__main__":
    Batches.step = fail
    main(sys.argv[2:])
