"""Make the program's clocks show virtual time, so that it measures modeled times."""

from __future__ import annotations

import threading
import time
import timeit

from virtualgpu.pytorch.mode import CudaGpu

real_sleep = time.sleep
NAMES = ("time", "perf_counter", "monotonic")
MAX_REAL_SLEEP = 1e-3  # seconds; not 0, so that a loop polling something real does not spin


def install(gpu: CudaGpu) -> None:
    """Let time.time, perf_counter, and monotonic advance with the virtual host."""
    for name in NAMES:
        original = getattr(time, name)
        shown = virtual(gpu, original())
        setattr(time, name, shown)
        setattr(time, f"{name}_ns", lambda shown=shown: round(1e9 * shown()))
    timeit.default_timer = time.perf_counter

    def sleep(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            real_sleep(seconds)
            return
        gpu.clock.work(seconds)
        if gpu.journal is not None:
            gpu.journal.note("z", float(seconds))
        real_sleep(min(seconds, MAX_REAL_SLEEP))

    time.sleep = sleep


def virtual(gpu: CudaGpu, start: float):
    return lambda: start + gpu.clock.host
