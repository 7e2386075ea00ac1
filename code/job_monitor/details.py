"""What `lab top JOBID` adds about one job: verdicts, settings, iteration times, and the end of each
node's files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from job_monitor import causes, verdicts
from job_monitor.asked import Setting
from job_monitor.nodes import Node
from job_monitor.picture import Picture

LINES = 3  # of each file, unless asked otherwise
WIDEST = 200  # characters of a file's line
TIMES = 8  # of the last iterations in the log
DIFFERS = "<- differs"


class Line(NamedTuple):
    """A line of text, and how a terminal shows it: "red", "dim", or as it is."""

    text: str
    style: str = ""


def of(shown: Picture, count: int) -> list[Line]:
    """Return the lines about a job.

    Args:
        shown: what is known of the job.
        count: how many lines of each file; with 0, there are no files, and only the settings that
            differ.
    """
    found = [Line(f"{one.what:<14} {one.word:<4} {one.text}",
                  "red" if one.word == verdicts.BAD else "")
             for one in verdicts.judge(shown, shown.nodes)]
    found += _settings([one for one in shown.settings if count or one.differs])
    found += _times(shown)
    return [*found, *_files(shown, count)] if count else found


def _settings(settings: Sequence[Setting]) -> Iterator[Line]:
    if not settings:
        return
    rows = [("setting", "requested", "runs", ""), *(
        (one.what, one.asked or "-", one.found or "-", DIFFERS if one.differs else "")
        for one in settings)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (causes.clean(word).ljust(width) for word, width in
                 zip(row, (*widths, 0), strict=True))
        yield Line("  ".join(cells).rstrip(), "red" if row[3] else "" if row is not rows[0]
                   else "dim")


def _times(shown: Picture) -> Iterator[Line]:
    last = [one for one in shown.iterations if one.milliseconds is not None]
    if not last:
        return
    times = [one.milliseconds for one in last[-TIMES:]]
    told = ", ".join(f"{one:.1f}" for one in times)
    modeled = " (modeled)" if shown.device else ""
    yield Line(f"ms per iteration{modeled}, up to iteration {last[-1].iteration}: {told}; "
               f"median {statistics.median(times):.1f}")


def _files(shown: Picture, count: int) -> Iterator[Line]:
    for node in shown.nodes:
        yield from _tail(f"{node.name}.out", node.out, count)
        yield from _tail(f"{node.name}.err", node.err, count)
        yield from _gpus(node, count)
    if not shown.nodes:
        for path in shown.job.logs:
            yield from _tail(path.name, causes.read(path) if path.is_file() else None, count)


def _tail(name: str, lines: list[str] | None, count: int) -> Iterator[Line]:
    """Return the last lines of a file that are not empty, below its name."""
    last = [line for line in lines or () if line.strip()][-count:]
    state = "" if last else " (not written yet)" if lines is None else " (empty)"
    yield Line(f"{causes.clean(name)}{state}", "dim")
    for line in last:
        text = causes.clean(line[:WIDEST])
        yield Line(f"  {text}..." if len(line) > WIDEST else f"  {text}")


def _gpus(node: Node, count: int) -> Iterator[Line]:
    if not node.gpus:  # nvidia-smi failed, or ran on no GPU
        yield from _tail(f"{node.name}.gpu", node.gpu, count)
        return
    at = time.strftime("%H:%M:%S", time.localtime(node.seen))
    yield Line(f"{causes.clean(node.name)}.gpu (nvidia-smi at {at})", "dim")
    for gpu in node.gpus:
        on = ("process " + ", ".join(map(str, gpu.processes)) if gpu.processes else "no process")
        yield Line(f"  GPU {gpu.slot}  {causes.clean(gpu.name)}  {gpu.used} of {gpu.total} MiB  "
                   f"{gpu.utilization}  {on}")


def record(shown: Picture) -> dict:
    """Return the verdicts, the settings, and the nodes' GPUs, for programs."""
    return {
        "verdicts": [{"what": one.what, "verdict": one.word, "text": one.text}
                     for one in verdicts.judge(shown, shown.nodes)],
        "settings": [{"what": one.what, "requested": one.asked, "runs": one.found,
                      "differs": one.differs} for one in shown.settings],
        "nodes": [{"node": node.name, "gpus": [gpu._asdict() for gpu in node.gpus]}
                  for node in shown.nodes]}
