"""Named stopwatches on the device's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Upstream's order in the `time (ms)` line.
ORDER = ("forward-compute", "backward-compute", "backward-params-all-reduce",
         "optimizer-clip-main-grad", "optimizer", "batch-generator")


class Timers:
    """timers("name") is a context manager; what it measured adds up until `take`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._now()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + self._now() - start

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call, in upstream's order; starts again from zero."""
        seconds, self._seconds = self._seconds, {}
        return {name: seconds[name] for name in ORDER if name in seconds}


def time_line(seconds: dict[str, float], steps: int = 1) -> str:
    """Megatron's line: milliseconds per step of every timer."""
    return "time (ms)" + "".join(
        f" | {name}: {1000 * value / steps:.2f}" for name, value in seconds.items())
