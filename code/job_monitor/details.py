"""Describe one job in detail for `lab top JOBID`.

The details are verdicts, settings, iteration times, and the last lines of each node's files.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from job_monitor import causes, verdicts
from job_monitor.nodes import NodeFiles
from job_monitor.requested import JobSetting
from job_monitor.snapshot import Snapshot

LINES = 3  # lines of each file by default
MAX_WIDTH = 200  # characters of a file's line
MAX_TIMES = 8  # iteration times, of the last iterations in the log
DIFFERS = "<- differs"


class StyledLine(NamedTuple):
    """A line of text and its style in a terminal: "red", "dim", or "" for plain text."""

    text: str
    style: str = ""


def describe(snapshot: Snapshot, count: int) -> list[StyledLine]:
    """Return the lines that describe a job.

    Args:
        snapshot: the job.
        count: lines to show of each file. With 0, files and settings that agree are left out.
    """
    lines = [StyledLine(f"{one.check:<14} {one.verdict:<4} {one.reason}",
                        "red" if one.verdict == verdicts.BAD else "")
             for one in verdicts.judge(snapshot, snapshot.nodes)]
    lines += _settings([one for one in snapshot.settings if count or one.differs])
    lines += _times(snapshot)
    return [*lines, *_files(snapshot, count)] if count else lines


def _settings(settings: Sequence[JobSetting]) -> Iterator[StyledLine]:
    if not settings:
        return
    rows = [("setting", "requested", "runs", ""), *(
        (one.name, one.requested or "-", one.actual or "-", DIFFERS if one.differs else "")
        for one in settings)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (causes.clean(word).ljust(width) for word, width in
                 zip(row, (*widths, 0), strict=True))
        yield StyledLine("  ".join(cells).rstrip(), "red" if row[3] else "" if row is not rows[0]
                         else "dim")


def _times(snapshot: Snapshot) -> Iterator[StyledLine]:
    timed = [one for one in snapshot.iterations if one.milliseconds is not None]
    if not timed:
        return
    times = [one.milliseconds for one in timed[-MAX_TIMES:]]
    listed = ", ".join(f"{one:.1f}" for one in times)
    modeled = " (modeled)" if snapshot.device else ""
    yield StyledLine(f"ms per iteration{modeled}, up to iteration {timed[-1].iteration}: {listed}; "
                     f"median {statistics.median(times):.1f}")


def _files(snapshot: Snapshot, count: int) -> Iterator[StyledLine]:
    for node in snapshot.nodes:
        yield from _tail(f"{node.name}.out", node.out, count)
        yield from _tail(f"{node.name}.err", node.err, count)
        yield from _gpus(node, count)
    if not snapshot.nodes:
        for path in snapshot.job.logs:
            yield from _tail(path.name, causes.read(path) if path.is_file() else None, count)


def _tail(name: str, lines: list[str] | None, count: int) -> Iterator[StyledLine]:
    """Yield a file's name and its last non-empty lines."""
    last = [line for line in lines or () if line.strip()][-count:]
    state = "" if last else " (not written yet)" if lines is None else " (empty)"
    yield StyledLine(f"{causes.clean(name)}{state}", "dim")
    for line in last:
        text = causes.clean(line[:MAX_WIDTH])
        yield StyledLine(f"  {text}..." if len(line) > MAX_WIDTH else f"  {text}")


def _gpus(node: NodeFiles, count: int) -> Iterator[StyledLine]:
    if not node.gpus:  # nvidia-smi failed or listed no GPU
        yield from _tail(f"{node.name}.gpu", node.gpu, count)
        return
    clock = time.strftime("%H:%M:%S", time.localtime(node.sampled))
    yield StyledLine(f"{causes.clean(node.name)}.gpu (nvidia-smi at {clock})", "dim")
    for gpu in node.gpus:
        pids = "process " + ", ".join(map(str, gpu.processes)) if gpu.processes else "no process"
        yield StyledLine(f"  GPU {gpu.slot}  {causes.clean(gpu.name)}  {gpu.used} of {gpu.total} "
                         f"MiB  {gpu.utilization}  {pids}")


def as_dict(snapshot: Snapshot) -> dict:
    """Return the verdicts, the settings, and the nodes' GPUs as a dictionary for JSON."""
    return {
        "verdicts": [{"what": one.check, "verdict": one.verdict, "text": one.reason}
                     for one in verdicts.judge(snapshot, snapshot.nodes)],
        "settings": [{"what": one.name, "requested": one.requested, "runs": one.actual,
                      "differs": one.differs} for one in snapshot.settings],
        "nodes": [{"node": node.name, "gpus": [gpu._asdict() for gpu in node.gpus]}
                  for node in snapshot.nodes]}
