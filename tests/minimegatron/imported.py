"""Train on four ranks, and print which modules of this repository each of them imported.

python -m tests.minimegatron.imported PORT FLAG ...

The ranks are forks of a process that has imported torch and nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed  # noqa: F401

RANKS = 4
CODE = Path(__file__).parents[2] / "code"


def rank_main(rank: int, port: str, flags: list[str]) -> None:
    """Run one rank of the trainer, and print its modules instead of ending quietly."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    import minimegatron.main as program

    def leave(code: int) -> None:
        files = {Path(module.__file__) for module in list(sys.modules.values())
                 if getattr(module, "__file__", None)}
        ours = sorted(str(file.relative_to(CODE)) for file in files if file.is_relative_to(CODE))
        sys.stdout.write(json.dumps({"rank": rank, "modules": ours}) + "\n")
        sys.stdout.flush()
        os._exit(code)

    program.leave = leave
    program.main(flags)


if __name__ == "__main__":
    children = []
    for number in range(RANKS):
        if (child := os.fork()) == 0:
            rank_main(number, sys.argv[1], sys.argv[2:])
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
