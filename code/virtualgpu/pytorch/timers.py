"""The program's clocks show virtual time, so that its own measurements are the model's."""

from __future__ import annotations

import threading
import time
import timeit

from virtualgpu.pytorch.mode import CudaGpu

real_sleep = time.sleep
NAMES = ("time", "perf_counter", "monotonic")
SHORT = 1e-3  # a loop that polls something real must not spin


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
        real_sleep(min(seconds, SHORT))

    time.sleep = sleep


def virtual(gpu: CudaGpu, start: float):
    return lambda: start + gpu.clock.host
