"""A run of the trainer on two ranks in which rank 1 fails alone, without an agent.

An agent such as torchrun would kill the survivor before it can say what it lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from minimegatron.data.batches import Batches
from minimegatron.errors import UserError
from minimegatron.main import main

step = Batches.step


def run(how: str, flags: list[str], folder: str) -> tuple[int, str]:
    """Return the exit code and the standard error of this rank's trainer.

    Args:
        how: rank 1 raises an "error"; is killed ("death"); stops answering ("silence"); or is
            stopped with all its threads ("stop"), and killed once rank 0 has ended.
        flags: the trainer's, with RANK in place of the rank; `how` may be empty.
        folder: an empty one that both ranks see.
    """
    rank = os.environ["RANK"]
    error, ended = Path(folder, f"err{rank}"), Path(folder, "rank 0 ended")
    trainer = os.fork()
    if not trainer:
        _train(how, [flag.replace("RANK", rank) for flag in flags], error)
    if rank == "1" and how in ("silence", "stop"):
        while not ended.exists():
            time.sleep(0.05)
        os.kill(trainer, signal.SIGKILL)
    _, status = os.waitpid(trainer, 0)
    if rank == "0":
        ended.touch()
    return os.waitstatus_to_exitcode(status), error.read_text()


def _train(how: str, flags: list[str], error: Path) -> NoReturn:
    os.dup2(os.open(error, os.O_CREAT | os.O_WRONLY), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def fail(self: Batches, consumed: int, *others: object, **more: object) -> list:
        if os.environ["RANK"] == "1" and consumed > 0:
            if how == "error":
                raise UserError("this rank cannot go on")
            if how == "death":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
        return step(self, consumed, *others, **more)

    Batches.step = fail
    sys.argv[1:] = flags
    try:
        main()
    finally:
        os._exit(70)  # main ends the process itself
