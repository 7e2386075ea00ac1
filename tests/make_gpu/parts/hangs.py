"""A part that never ends, and has started a process that never ends."""

import subprocess
import sys
import time

from benchmarks.gpu.result import Result, Table

LIMIT = 2


def run(quick: bool) -> Result:
    """Save one row, then sleep forever."""
    Result([Table("Before the limit", ["a"], [[1]])]).save_so_far()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
    print(f"child {child.pid}", flush=True)
    time.sleep(1e6)
