"""What a rank is doing now, in a file that others may look at: `lab top`, `nvidia-smi`.

The cluster names a folder for each job in RANK_STATUS; every rank keeps RANK.json there. Without
that variable nothing is written. A reader finds a whole file or none.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from minimegatron.context import Context

SECONDS = 0.5  # between two writes: whoever looks is a human


class Status:
    """This rank's file. Its fields: `facts` below, which stay, and what `update` is told."""

    def __init__(self, ctx: Context) -> None:
        folder = os.environ.get("RANK_STATUS")
        self.path = Path(folder) / f"{ctx.grid.rank}.json" if folder else None
        self.device, self.written = ctx.device, 0.0
        self.stepped, self.pace = None, None  # when the last step ended; seconds between two
        config, grid = ctx.config, ctx.grid
        self.fields: dict[str, object] = {
            "rank": grid.rank, "world_size": grid.world_size, "pid": os.getpid(),
            "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            "job": os.environ.get("SLURM_JOB_ID"),
            "local_rank": int(os.environ.get("LOCAL_RANK", 0)),
            "place": {"pp": grid.pp.index, "dp": grid.dp.index, "tp": grid.tp.index},
            "device": ctx.device.name or ctx.device.kind, "modeled": bool(ctx.device.label),
            "started": time.time(), "train_iters": config.train_iters, "iteration": 0,
            "global_batch_size": config.global_batch_size, "state": "starting"}
        self.update()

    def update(self, now: bool = True, **fields: object) -> None:
        """Note fields, and write them now, or if not `now` when it is time again."""
        self.fields |= fields
        if self.path is None or (not now and time.time() < self.written + SECONDS):
            return
        self.written = time.time()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.path.with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(
                {**self.fields, **self.device.status(), "time": self.written}))
            os.replace(unfinished, self.path)
        except OSError:  # a full disk must not end the training
            self.path = None

    def phase(self, state: str) -> None:
        """Something other than steps begins."""
        self.stepped = None
        self.update(state=state)

    def step(self, iteration: int, seconds: float, shown: dict[str, float | None]) -> None:
        """After a step of so many seconds of the device's clock; shown: by the log's last line.

        The file's `pace` is of this machine's clock, also where the device's is modeled: it tells
        a reader how long a silence is usual.
        """
        now = time.time()
        if self.stepped is not None:
            gap = now - self.stepped
            self.pace = gap if self.pace is None else 0.8 * self.pace + 0.2 * gap
        self.stepped = now
        self.update(now=False, state="training", iteration=iteration, milliseconds=1000 * seconds,
                    pace=self.pace, **shown)
