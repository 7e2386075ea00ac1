"""Cost of virtualrun on this machine: real seconds, and the peak memory of all its processes.

python benchmarks/virtualrun_size.py

The program is tests/virtualgpu/scripts/train.py, three steps of a Transformer with 600 million
parameters under DistributedDataParallel. Memory is the proportional set size (PSS), sampled.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

PROGRAM = Path(__file__).resolve().parents[1] / "tests" / "virtualgpu" / "scripts" / "train.py"
RUNS = {"8 ranks, one process each": ["--gpus", "h100:8"],
        "1,024 ranks, --solo": ["--gpus", "h100:8", "--nodes", "128", "--solo"]}
ROUNDS = 3
INTERVAL = 0.2  # seconds between two samples


def memory(process: psutil.Process) -> int:
    """Bytes of a process and everything it started."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it has just ended
            continue
    return total


def measure(options: list[str]) -> tuple[float, int]:
    """Real seconds and peak bytes of one run."""
    start, peak = time.perf_counter(), 0
    with subprocess.Popen([sys.executable, "-m", "virtualgpu.run", *options, str(PROGRAM)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            peak = max(peak, memory(process))
            time.sleep(INTERVAL)
    if running.returncode:
        raise SystemExit(f"{PROGRAM.name} with {' '.join(options)} exited {running.returncode}")
    return time.perf_counter() - start, peak


def main() -> None:
    for name, options in RUNS.items():
        found = [measure(options) for _ in range(ROUNDS)]
        seconds = sorted(one for one, _ in found)[ROUNDS // 2]
        print(f"{name}: {seconds:.1f} s (median of {ROUNDS}), "
              f"{max(peak for _, peak in found) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
