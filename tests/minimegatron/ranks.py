"""Rank processes without an agent, which share one import of torch.

python ranks.py PROGRAM RANKS ARGUMENT ..       PROGRAM: a module with main(), beside this one or by
                                                its full name (tests.FOLDER.MODULE)
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from minimegatron.imports import quick_imports


def run_ranks(program: str, ranks: int, words: list[str], timeout: float = 300,
              cwd: Path | None = None) -> list[dict]:
    """The JSON lines that the ranks print, rank by rank."""
    command = [sys.executable, __file__, program, str(ranks), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: line["rank"])


def be(rank: int, ranks: int, port: int, program: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    importlib.import_module(program).main()


def main() -> None:
    sys.path.append(str(Path(__file__).parents[2]))
    program, ranks = sys.argv[1], int(sys.argv[2])
    sys.argv[1:3] = []
    with quick_imports():  # before the fork: once for all
        from torch.multiprocessing import start_processes

        importlib.import_module(program)
    from tests.ports import free_port

    start_processes(be, (ranks, free_port(), program), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
