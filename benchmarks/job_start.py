"""From sbatch to the first iteration: 4 ranks on two nodes of the running cluster.

eval "$(lab cluster env)"; python benchmarks/job_start.py [--repeats 5]

Needs `lab start` or `lab cluster up` and `lab data` in the same workspace.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time

import slurmbox as cluster
from labcore import shipping, workspace


def seconds_to_first_iteration() -> float:
    home = workspace.home()
    command = ["sbatch", "code/dp_two_nodes.sh", "--train-iters", "2", "--log-interval", "1",
               "--hidden-dropout", "0", "--attention-dropout", "0", "--eval-iters", "0"]
    start = time.perf_counter()
    out = subprocess.run(command, cwd=home, env=cluster.environment(home), check=True,
                         capture_output=True, text=True).stdout
    log = home / f"megatron/logs/dp_two_nodes_{out.split()[-1]}.txt"
    while time.perf_counter() - start < 120:
        if log.exists() and re.search(r"^ iteration        1/", log.read_text(), re.M):
            seconds = time.perf_counter() - start
            while "after training is done" not in log.read_text():
                time.sleep(0.05)
            time.sleep(1)
            return seconds
        time.sleep(0.02)
    raise SystemExit(f"no iteration within 120 s: see {log}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    shipping.make_workspace(workspace.home())
    times = [seconds_to_first_iteration() for _ in range(parser.parse_args().repeats)]
    print("sbatch to first iteration, 4 ranks on 2 nodes: "
          f"median {statistics.median(times):.2f} s of {', '.join(f'{t:.2f}' for t in times)}")


if __name__ == "__main__":
    main()
