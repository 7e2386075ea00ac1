"""The same job again and again while others use the machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

FLAGS = ("--device virtual:v100 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
         "--sequence-parallel --global-batch-size 8 --train-iters 4 --log-interval 1 "
         "--eval-interval 2 --eval-iters 1 --log-throughput")
# How lines with modeled figures begin; setting up takes real time.
MODELED = (" iteration ", "time (ms) | forward", "[Rank ", " model TFLOP/s")


@contextmanager
def busy_machine(loops: int = 2):
    """Somebody else's endless loops."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def figures(run) -> list[str]:
    """The lines with virtual times and memory, to the last digit; ranks print in any order."""
    return sorted(line for line in run.out.splitlines() if line.startswith(MODELED))


def repeated(pretrain, count: int) -> list[list[str]]:
    collected = [figures(pretrain(FLAGS, ranks=4))]
    for loops in range(1, count):
        with busy_machine(loops % 3 + 1):
            collected.append(figures(pretrain(FLAGS, ranks=4)))
    return collected
