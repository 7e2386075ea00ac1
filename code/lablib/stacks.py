"""Collect the Python stacks of a running job's ranks with py-spy."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from labcore.errors import LabError

RANK_LINE = re.compile(r"^rank (\d+): PID (\d+) on (\S+)$", re.M)
START_TIMEOUT = 50  # seconds until all ranks have printed their line
TIMEOUT = 10  # seconds for the stack of one rank, because a cell has a minute


def dump(job: int, log: Path, ranks: int) -> list[str]:
    """Return the output of `py-spy dump` for each rank of a running job, in the order of the ranks.

    It also prints the command for rank 0.

    Args:
        job: the job's ID.
        log: its log, in which each rank has printed a line such as `rank 0: PID 42 on node1`.

    Raises:
        LabError: not all ranks have printed their line, or py-spy cannot read a stack or takes
            longer than TIMEOUT.
    """
    places = _places(log, ranks)
    environment = {**os.environ, "CLICOLOR_FORCE": "0", "NO_COLOR": "1"}  # kernels force colors
    stacks = []
    for rank in range(ranks):
        pid, node = places[rank]
        command = ["srun", f"--jobid={job}", "--overlap", f"--nodelist={node}", "--nodes=1",
                   "--ntasks=1", "py-spy", "dump", "--pid", pid]
        if rank == 0:
            print("$", " ".join(command))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT,
                                  env=environment)
        except subprocess.TimeoutExpired:
            raise LabError(f"no stack of rank {rank} within {TIMEOUT} s: run this cell "
                           "again") from None
        if done.returncode:
            raise LabError(f"no stack of rank {rank}: {done.stderr.strip()[-500:]}")
        stacks.append(done.stdout)
    return stacks


def _places(log: Path, ranks: int) -> dict[int, tuple[str, str]]:
    """Return each rank's (process ID, node) once all have printed it. Raises LabError."""
    end = time.monotonic() + START_TIMEOUT
    while True:
        text = log.read_text(errors="replace") if log.exists() else ""
        places = {int(rank): (pid, node) for rank, pid, node in RANK_LINE.findall(text)}
        if len(places) >= ranks:
            return places
        if time.monotonic() > end:
            raise LabError(f"{len(places)} of {ranks} ranks have started: run this cell again")
        time.sleep(0.3)
