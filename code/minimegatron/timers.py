"""Named stopwatches on the device's clock.

Reading the clock waits for the device, so timers slow the run down: --timing-log-level selects
those that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from pipeline_schedules import Action

# In Megatron's order, with the lowest --timing-log-level at which a timer runs.
LEVELS = {
    "model-and-optimizer-setup": 0, "train/valid/test-data-iterators-setup": 0,
    "forward-backward": 1, "forward-compute": 2, "forward-recv": 2, "backward-compute": 2,
    "backward-recv": 2, "backward-params-all-reduce": 1, "backward-embedding-all-reduce": 1,
    "optimizer-copy-to-main-grad": 1, "optimizer-unscale-and-check-inf": 1,
    "optimizer-clip-main-grad": 1, "optimizer-copy-main-to-model-params": 1, "optimizer": 1,
    "batch-generator": 2,
}
NOT_OF_2021 = ("forward-backward",)


class Recorder(Protocol):
    """What records every timed section of some steps (report/timeline.py)."""

    active: bool  # whether it records this step

    def add(self, name: str, start: float, end: float, action: Action | None) -> None:
        """Add a section, from `start` to `end` in seconds on the device's clock."""


class Timers:
    """Timers by name: `with timers("optimizer"): ...` adds to a total that `take` returns.

    Attributes:
        recorder: --timeline's, or None; every timer runs in the step that it records.
    """

    def __init__(self, now: Callable[[], float], level: int | None = None,
                 mark: Callable[[str], AbstractContextManager] = lambda _: nullcontext()) -> None:
        """Select the timers that run.

        Args:
            now: the device's clock, in seconds.
            level: --timing-log-level; None selects the timers of 2021.
            mark: returns a context manager that names a range in the device's profile.
        """
        self._now, self._mark = now, mark
        self.recorder: Recorder | None = None
        self.running = {name for name, needed in LEVELS.items()
                        if (name not in NOT_OF_2021 if level is None else needed <= level)}
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, action: Action | None = None) -> Iterator[None]:
        """Time a block. Raises KeyError for a name that is not in LEVELS.

        Args:
            name: the timer's name.
            action: the schedule's action, if the block executes one.
        """
        LEVELS[name]  # a timer outside LEVELS would never be printed
        recorded = self.recorder is not None and self.recorder.active
        with self._mark(name if action is None else f"{name} {action}"):
            if name not in self.running and not recorded:
                yield
                return
            start = self._now()
            yield
            end = self._now()
        if name in self.running:
            self._seconds[name] = self._seconds.get(name, 0.0) + end - start
        if recorded:
            self.recorder.add(name, start, end, action)

    def take(self) -> dict[str, float]:
        """Return the seconds by name since the last call, in Megatron's order, and reset them."""
        seconds, self._seconds = self._seconds, {}
        return {name: seconds[name] for name in LEVELS if name in seconds}
