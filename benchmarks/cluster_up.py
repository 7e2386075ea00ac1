"""Time that the cluster takes: from nothing to all nodes idle, a step on two nodes, and down.

python benchmarks/cluster_up.py [--repeats 5] [--nodes 2] [--mode auto]

Each repeat starts in an empty workspace. Prints medians in seconds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import slurmbox as cluster
from slurmbox import control


def seconds(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def once(options: control.UpOptions) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        up = seconds(lambda: control.up(home, options, notify=lambda line: None))
        try:
            environment = cluster.environment(home)
            step = seconds(lambda: subprocess.run(
                ["srun", f"-N{min(2, options.nodes)}", "true"], env=environment, check=True,
                stderr=subprocess.DEVNULL))
        finally:
            down = seconds(lambda: control.down(home, notify=lambda line: None))
    return up, step, down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--mode", default="auto")
    arguments = parser.parse_args()
    options = control.UpOptions(nodes=arguments.nodes, mode=arguments.mode)
    rows = [once(options) for _ in range(arguments.repeats)]
    for name, values in zip(("up, all nodes idle", "srun -N2 true", "down"),
                            zip(*rows, strict=True), strict=True):
        print(f"{name:<20} {statistics.median(values):6.3f} s   (worst {max(values):.3f})")


if __name__ == "__main__":
    main()
