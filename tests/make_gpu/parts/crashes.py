"""A part whose process is killed."""

import os
import signal

from benchmarks.gpu.result import Result


def run(quick: bool) -> Result:
    """End as a segmentation fault does."""
    print("just before the crash", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
