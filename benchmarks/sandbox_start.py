"""Start-up time of a sandbox: from starting Python to its first byte, plain and isolated.

python benchmarks/sandbox_start.py [--repeats 20] [--sandbox bubblewrap] [--sandbox podman]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from grader.sandbox.choice import choose
from grader.sandbox.interface import Limits
from grader.sandbox.selftest import self_test

COMMAND = [sys.executable, "-I", "-c", "print('+', flush=True); input()"]


def plain() -> float:
    begun = time.perf_counter()
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
                          ) as child:
        os.read(child.stdout.fileno(), 1)
        seconds = time.perf_counter() - begun
        child.kill()
    return seconds


def isolated(backend) -> tuple[float, float]:
    """Seconds to the first byte, and seconds to be gone after `kill`."""
    begun = time.perf_counter()
    with backend.start(COMMAND, Limits()) as running:
        os.read(running.stdout, 1)
        started = time.perf_counter()
        running.kill()
    return started - begun, time.perf_counter() - started


def median(what: str, measure: Callable[[], float], repeats: int) -> float:
    times = [measure() for _ in range(repeats)]
    print(f"{what:42} median {statistics.median(times):6.3f} s   "
          f"{min(times):.3f} .. {max(times):.3f}")
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sandbox", action="append", help="(the one that is chosen here)")
    arguments = parser.parse_args()
    base = median("python alone, to its first byte", plain, arguments.repeats)
    for name in arguments.sandbox or [None]:
        backend = choose(name)
        ends: list[float] = []

        def start(backend=backend, ends=ends) -> float:
            seconds, end = isolated(backend)
            ends.append(end)
            return seconds

        found = median(f"python in {backend.name}", start, arguments.repeats)
        print(f"{'':42} overhead {found - base:.3f} s; kill until all are gone: median "
              f"{statistics.median(ends):.3f} s, at most {max(ends):.3f} s")
        begun = time.perf_counter()
        self_test(backend, None)
        print(f"self-test of {backend.name}: {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main()
