"""A part that never ends, and has started a process that never ends."""

import subprocess
import sys
import time

from benchmarks.gpu.result import Result

LIMIT = 2


def run(quick: bool) -> Result:
    """Sleep for ever."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
    print(f"child {child.pid}", flush=True)
    time.sleep(1e6)
