"""Every benchmark of this folder, one after the other: `make bench`.

The cluster's and the job's need Slurm; they run in a workspace of their own, which is removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(*words: str | Path, **environment: str) -> None:
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, **environment})


def main() -> None:
    run(HERE / "index_maps.py")
    for model in ("10M", "124M"):
        for dtype in ("fp32", "bf16"):
            run(HERE / "train_speed.py", "--model", model, "--dtype", dtype, "--steps", "1")
    for name in ("ranks_speed.py", "bubble.py", "memory.py"):
        run(HERE / name)
    run(HERE / "grading.py")
    run(HERE / "grading_overhead.py")
    run(HERE / "cluster_up.py")
    run(HERE / "sandbox_start.py")
    with tempfile.TemporaryDirectory() as home:
        lab = "import sys; from lab.cli import main; sys.exit(main(sys.argv[1:]))"
        run("-c", lab, "data", LAB_HOME=home)
        run("-c", lab, "cluster", "up", LAB_HOME=home)
        try:
            run(HERE / "job_start.py", LAB_HOME=home)
            run(HERE / "virtual_speed.py", "--job", LAB_HOME=home)
        finally:
            run("-c", lab, "cluster", "down", LAB_HOME=home)


if __name__ == "__main__":
    main()
