"""Named stopwatches on the device's clock, and the lines that show them.

Reading the clock waits for the device, so a timer costs what it measures: --timing-log-level says
which of them run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.logging.timeline import Recorder
from pipeline_schedules import Action

# Upstream's order, with the level from which a timer runs.
LEVELS = {
    "model-and-optimizer-setup": 0, "train/valid/test-data-iterators-setup": 0,
    "forward-backward": 1, "forward-compute": 2, "forward-recv": 2, "backward-compute": 2,
    "backward-recv": 2, "backward-params-all-reduce": 1, "backward-embedding-all-reduce": 1,
    "optimizer-copy-to-main-grad": 1, "optimizer-unscale-and-check-inf": 1,
    "optimizer-clip-main-grad": 1, "optimizer-copy-main-to-model-params": 1, "optimizer": 1,
    "batch-generator": 2,
}
NOT_OF_2021 = ("forward-backward",)


class Timers:
    """timers("name") is a context manager; what it measured adds up until `take`.

    level: timers above it do not run; None: those that ran in 2021. recorder: in the step that it
    watches, all run. mark: gives a range by name, for the device's profile.
    """

    def __init__(self, now: Callable[[], float], level: int | None = None,
                 recorder: Recorder | None = None,
                 mark: Callable[[str], AbstractContextManager] = lambda _: nullcontext()) -> None:
        self._now, self.recorder, self._mark = now, recorder, mark
        self.running = {name for name, needed in LEVELS.items()
                        if (name not in NOT_OF_2021 if level is None else needed <= level)}
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, action: Action | None = None) -> Iterator[None]:
        """action: of the schedule, where the section is one."""
        LEVELS[name]  # KeyError: a timer that no line would show
        watched = self.recorder is not None and self.recorder.active
        with self._mark(name if action is None else f"{name} {action}"):
            if name not in self.running and not watched:
                yield
                return
            start = self._now()
            yield
            end = self._now()
        if name in self.running:
            self._seconds[name] = self._seconds.get(name, 0.0) + end - start
        if watched:
            self.recorder.note(name, start, end, action)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing inside counts: evaluation is no part of a step."""
        running, self.running = self.running, set()
        try:
            yield
        finally:
            self.running = running

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call, in upstream's order; starts again from zero."""
        seconds, self._seconds = self._seconds, {}
        return {name: seconds[name] for name in LEVELS if name in seconds}


def say_times(ctx: Context, seconds: Mapping[str, float], steps: int = 1, label: str = "") -> None:
    """Print times per step: the last rank's in the line of 2021, or with --timing-log-level those
    of all ranks, through the control group; every rank must call it.

    label: of the device whose clock they are, where that is modeled.
    """
    if ctx.config.timing_log_level is None:
        ctx.say_last(time_line(seconds, steps) + (f" | {label}" if label else ""))
        return
    ranks: list[dict[str, float]] = [{}] * ctx.grid.world_size
    dist.all_gather_object(ranks, {name: value / steps for name, value in seconds.items()})
    lines = times_of_ranks(ctx.config.timing_log_option, ranks)
    if lines:
        lines[0] += f" {label}" if label else ""
        ctx.say_last("\n".join(lines))  # one text: no other rank's line comes between


def time_line(seconds: Mapping[str, float], steps: int = 1) -> str:
    """Megatron's line of 2021: milliseconds per step of every timer."""
    return "time (ms)" + "".join(
        f" | {name}: {1000 * value / steps:.2f}" for name, value in seconds.items())


def times_of_ranks(option: str, ranks: Sequence[Mapping[str, float]]) -> list[str]:
    """Megatron's lines of today from every rank's seconds by name; a rank on which a timer did not
    run has no part in it. option: "max", "minmax" or "all"."""
    names = [name for name in LEVELS if any(name in rank for rank in ranks)]
    if not names:
        return []
    lines = [{"max": "max time across ranks (ms):", "all": "times across ranks (ms):",
              "minmax": "(min, max) time across ranks (ms):"}[option]]
    for name in names:
        times = {at: 1000 * rank[name] for at, rank in enumerate(ranks) if name in rank}
        low, high = min(times.values()), max(times.values())
        if option == "all":
            lines.append(f"  {name}:")
            lines += [f"     rank {at:2d}: {value:.2f}" for at, value in times.items()]
        else:
            value = f"{high:.2f}" if option == "max" else f"({low:.2f}, {high:.2f})"
            lines.append(f"    {(name + ' ').ljust(48, '.')}: {value}")
    return lines
