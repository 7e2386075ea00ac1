"""The timeline of one training step: every rank's timers on one clock, as a trace and a figure.

`--timeline FOLDER` writes FOLDER/timeline.json, which Perfetto (ui.perfetto.dev) and
chrome://tracing open, and FOLDER/timeline.svg, the same figure that draw() makes of a schedule.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.profiler
from torch._C._profiler import _ExperimentalConfig

from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.report.step_log import Report
from pipeline_schedules import Action, ScheduleError, draw
from pipeline_schedules.traces import FILE, perfetto, read, write

if TYPE_CHECKING:
    from minimegatron.context import Progress
    from minimegatron.report.step_log import Run, StepLog

EXCHANGES = 20  # with each rank, to align its clock; the fastest one counts


class Section(NamedTuple):
    """One run of a timer."""

    name: str
    start: float  # seconds on the device's clock
    end: float
    action: Action | None = None  # of the schedule, if the section executes one


class Recorder(Report):
    """Records one step's timers on every rank; rank 0 writes the files."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.sections = ctx, []
        self.active = False

    def start(self, run: Run) -> None:
        """Warn if a resumed run will not reach the step to record."""
        config, resumed = self.ctx.config, run.progress.iteration
        if resumed >= config.timeline_iteration:
            self.ctx.print_rank_0(
                f"WARNING: --timeline-iteration {config.timeline_iteration}: the run resumes after "
                f"iteration {resumed}, nothing will be recorded; nearest: --timeline-iteration "
                f"{resumed + 3}")

    def begin_step(self, iteration: int) -> None:
        """Align the clocks before the step to record; every rank must call it before each step."""
        config = self.ctx.config
        self.active = iteration == config.timeline_iteration
        if self.active:
            self.sections.clear()
            self.offset = 0.0 if self.ctx.device.shares_clock else clock_offset(
                self.ctx.grid.rank, self.ctx.grid.world_size, self.ctx.device.now)

    def add(self, name: str, start: float, end: float, action: Action | None) -> None:
        """Add a section; the timers call it at the end of each.

        Args:
            name: the timer's name.
            start: in seconds on the device's clock.
            end: in seconds on the device's clock.
            action: the schedule's action, if the section executes one.
        """
        if self.active:
            self.sections.append(Section(name, start, end, action))

    def end_step(self, log: StepLog, progress: Progress, learning_rate: torch.Tensor) -> None:
        self.finish()

    def finish(self) -> None:
        """Write both files after the recorded step; every rank must call it after each step."""
        if not self.active:
            return
        self.active = False
        grid = self.ctx.grid
        mine = {"rank": grid.rank, **grid.position,
                "sections": [(name, start + self.offset, end + self.offset,
                              action and dataclasses.astuple(action))
                             for name, start, end, action in self.sections]}
        timelines: list | None = [None] * grid.world_size if grid.rank == 0 else None
        dist.gather_object(mine, timelines)
        if timelines is not None:
            folder = Path(self.ctx.config.timeline)
            label = self.ctx.device.label
            title = f"Iteration {self.ctx.config.timeline_iteration}, as it ran"
            try:
                write(folder / FILE, perfetto(timelines, label))
                timeline = read(folder / FILE)
                draw(timeline, f"{title} on a {label}" if label else title, "ms",
                     live=True).save(folder / "timeline.svg")
            except ScheduleError as error:
                raise UserError(str(error)) from error
            self.ctx.print_rank_0(
                f" timeline of iteration {self.ctx.config.timeline_iteration} written to "
                f"{folder / FILE}: bubble {timeline.bubble_fraction:.1%} of the time")


def clock_offset(rank: int, ranks: int, now: Callable[[], float]) -> float:
    """Return the seconds to add to this rank's clock to match rank 0's; every rank must call it.

    Each rank asks rank 0 for the time, and assumes that the answer is from the middle of the
    exchange. The error is at most half of the fastest round trip (Cristian 1989).

    Args:
        ranks: the world size.
        now: this rank's clock, in seconds.
    """
    time, question = np.zeros(1), torch.zeros(1)
    answer = torch.from_numpy(time)  # the same memory
    best, offset = float("inf"), 0.0
    for peer in range(1, ranks):
        for _ in range(EXCHANGES if rank in (0, peer) else 0):
            if rank == 0:
                dist.recv(question, peer)
                dist.send(torch.tensor([now()], dtype=torch.float64), peer)
                continue
            sent = now()
            dist.send(question, 0)
            dist.recv(answer, 0)
            received = now()
            if received - sent < best:
                best = received - sent
                offset = float(time[0]) - (sent + received) / 2
    return offset


def torch_profiler(folder: str, worker: str) -> torch.profiler.profile:
    """Return a profiler that records two steps and writes FOLDER/WORKER.TIME.pt.trace.json.

    TensorBoard shows `worker` as the rank's name.
    """
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        profile_memory=True, record_shapes=True, with_stack=True, with_modules=True,
        experimental_config=_ExperimentalConfig(verbose=True),  # an operator's call stack
        on_trace_ready=torch.profiler.tensorboard_trace_handler(folder, worker_name=worker))


class Profiler(Report):
    """Profiles steps 3 and 4 on every rank, or on --profile-ranks.

    The traces are workers run_NAME_gpuRANK of one TensorBoard run, run_NAME, because the profiler
    tab's distributed view compares the workers of a run. The profiler skips the first step and
    warms up in the second.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.profile = ctx, None

    def start(self, run: Run) -> None:
        config, rank = self.ctx.config, self.ctx.grid.rank
        if config.profile_ranks and rank not in config.profile_ranks:
            return
        name = f"run_{config.profile_name}"
        place = os.path.join(config.tensorboard_dir, name), f"{name}_gpu{rank}"
        self.profile = self.ctx.device.profile(*place) or torch_profiler(*place)
        self.profile.start()

    def step_launched(self) -> None:
        if self.profile is not None:
            self.profile.step()

    def end_training(self) -> None:
        if self.profile is not None:
            self.profile.stop()
