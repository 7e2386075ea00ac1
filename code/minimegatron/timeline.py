"""One step as it really ran: what every rank did when, on one clock, as a trace and as a figure.

`--timeline FOLDER` writes FOLDER/timeline.json, which Perfetto (ui.perfetto.dev) and
chrome://tracing open, and FOLDER/timeline.svg, the figure that draw() makes of a schedule too.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.schedules import Action, ScheduleError, Timeline, draw

EXCHANGES = 20  # with each rank, to align its clock: the quickest one counts
FILE = "timeline.json"


class Section(NamedTuple):
    """Something that a rank did, by its timer's name; action: where it is one of the schedule's."""

    name: str
    start: float  # seconds
    end: float
    action: Action | None = None


class Recorder:
    """Watches the timers in one step, and writes what all ranks did in it."""

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.sections = ctx, []
        self.active = False

    def begin(self, iteration: int) -> None:
        """Every rank must call it before each step: in the chosen one they watch."""
        config = self.ctx.config
        self.active = config.timeline is not None and iteration == config.timeline_iteration
        if self.active:
            self.sections.clear()
            self.offset = 0.0 if self.ctx.device.shares_clock else clock_offset(
                self.ctx.grid.rank, self.ctx.grid.world_size, self.ctx.device.now)

    def note(self, name: str, start: float, end: float, action: Action | None) -> None:
        """Called by the timers at the end of every section."""
        if self.active:
            self.sections.append(Section(name, start, end, action))

    def finish(self) -> None:
        """Every rank must call it after the step: rank 0 writes both files."""
        if not self.active:
            return
        self.active = False
        grid = self.ctx.grid
        mine = {"rank": grid.rank, "pp": grid.pp.index, "dp": grid.dp.index, "tp": grid.tp.index,
                "sections": [(name, start + self.offset, end + self.offset,
                              action and dataclasses.astuple(action))
                             for name, start, end, action in self.sections]}
        everyone: list | None = [None] * grid.world_size if grid.rank == 0 else None
        dist.gather_object(mine, everyone)
        if everyone is not None:
            folder = Path(self.ctx.config.timeline)
            label = self.ctx.device.label
            write(folder / FILE, perfetto(everyone, label))
            timeline = read(folder / FILE)
            title = f"Iteration {self.ctx.config.timeline_iteration}, as it ran"
            draw(timeline, f"{title} on a {label}" if label else title, "ms").save(
                folder / "timeline.svg")
            self.ctx.say(f" timeline of iteration {self.ctx.config.timeline_iteration} written to "
                         f"{folder / FILE}: bubble {timeline.bubble_fraction:.1%} of the time")


def clock_offset(rank: int, ranks: int, now: Callable[[], float]) -> float:
    """Seconds to add to this rank's clock so that it reads as rank 0's; every rank must call it.

    Each rank asks rank 0 for the time and takes it for that of the middle of the exchange, which
    is wrong by half the quickest round trip at most (Cristian 1989).
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
            asked = now()
            dist.send(question, 0)
            dist.recv(answer, 0)
            told = now()
            if told - asked < best:
                best = told - asked
                offset = float(time[0]) - (asked + told) / 2
    return offset


def perfetto(ranks: list[dict], label: str = "") -> dict:
    """The trace-event format: a process per rank, times in microseconds from the first start.
    label: of a modelled device."""
    begin = min(start for rank in ranks for _, start, _, _ in rank["sections"])
    events = []
    for rank in ranks:
        place = {axis: rank[axis] for axis in ("pp", "dp", "tp")}
        title = f"rank {rank['rank']}: stage {rank['pp']}, dp {rank['dp']}, tp {rank['tp']}"
        title += f" ({label})" if label else ""
        pid = rank["rank"]
        events += [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0,
                    "args": {"name": title}},
                   {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0,
                    "args": {"sort_index": pid}}]
        for name, start, end, action in rank["sections"]:
            event = {"ph": "X", "pid": pid, "tid": 0, "cat": name, "name": name,
                     "ts": 1e6 * (start - begin), "dur": 1e6 * (end - start), "args": place}
            if action is not None:
                event["name"] = str(Action(*action))
                event["args"] = {**place, "action": list(action)}
            events.append(event)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write(path: Path, trace: dict) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(trace, separators=(",", ":")))
    os.replace(unfinished, path)


def read(path: str | Path, dp: int = 0, tp: int = 0) -> Timeline:
    """The pipeline of data-parallel replica `dp` and tensor-parallel rank `tp`, in milliseconds,
    for draw(). Raises UserError when the file is no recorded timeline or has no such ranks."""
    try:
        events = json.loads(Path(path).read_text())["traceEvents"]
        recorded: dict[int, list] = {}
        for event in events:
            args = event.get("args", {})
            if "action" in args and (args["dp"], args["tp"]) == (dp, tp):
                start, length = event["ts"] / 1e3, event["dur"] / 1e3
                recorded.setdefault(args["pp"], []).append(
                    (*args["action"], start, start + length))
        return Timeline.of(recorded)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; --timeline FOLDER writes FOLDER/{FILE}"
                        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, ScheduleError) as error:
        raise UserError(f"{path} holds no timeline of dp {dp}, tp {tp} that --timeline wrote "
                        f"({error})") from error
