"""Show jobs as text: plain lines, or a rich table in a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from job_monitor import details, liveness
from job_monitor.causes import clean
from job_monitor.snapshot import WAITING, RankHealth, Snapshot

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HEAD = ("RANK", "NODE", "GPU", "STATE", "ITERATION", "MS/ITER", "LOSS", "TFLOP/S", "MEMORY", "PEAK",
        "WHY")
COLORS = {liveness.RUNNING: "green", liveness.DONE: "green", liveness.STALLED: "yellow",
          liveness.STOPPED: "yellow", liveness.DEAD: "red", liveness.FAILED: "red"}
RIGHT_ALIGNED = {"RANK", "GPU", "ITERATION", "MS/ITER", "LOSS", "TFLOP/S", "MEMORY", "PEAK"}
MAX_REASON = 90  # characters; the ERROR line has all of them
MAX_ROWS = 64  # ranks of one job to show; unhealthy ones come first
HIGHLIGHTED = ("ERROR", "MISMATCH")


def gib(size: float | None) -> str:
    """Format a size in bytes as a number of GiB."""
    if size is None or not math.isfinite(size):
        return "-"
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.2f}"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def title(snapshot: Snapshot) -> str:
    job, latest = snapshot.job, snapshot.latest
    words = [f"job {job.number} {clean(job.name)}: {job.state}"]
    if job.state == "PENDING" and job.reason:
        words[0] += f" ({clean(job.reason)})"
    if job.joined:
        words.append(f"joined by {', '.join(map(str, job.joined))}")
    if job.nodes:
        words.append(f"on {clean(job.nodes)}")
    if job.elapsed and job.state != "PENDING":
        words.append(f"for {job.elapsed}" + (f" of {job.limit}" if job.limit else ""))
    if latest.iteration:
        of = f" of {latest.train_iters}" if latest.train_iters else ""
        words.append(f"iteration {latest.iteration}{of}")
    return ", ".join(words)


def notes(snapshot: Snapshot) -> list[str]:
    """Return the lines below a job's table."""
    job, latest, lines = snapshot.job, snapshot.latest, []
    if snapshot.device:
        seconds = max((rank.virtual_seconds or 0 for rank in snapshot.statuses), default=0)
        clock = f"; virtual time {seconds:.1f} s" if seconds else ""
        lines.append(f"times, TFLOP/s, and memory are modeled: {clean(snapshot.device)}{clock}")
        if snapshot.software:
            lines.append(f"software stack {clean(snapshot.software)}")
    if snapshot.source == "log" and latest.milliseconds is not None and job.state not in WAITING:
        lines.append(f"from the log alone, because no rank wrote a status file: "
                     f"{latest.milliseconds:.1f} ms per iteration, "
                     f"loss {number(latest.loss, '.4f')}, TFLOP/s {number(latest.tflops, '.3g')}")
    elif snapshot.source == "log" and job.state == "RUNNING" and job.logs:
        lines.append("no rank has reported, and the log has no iteration yet"
                     if snapshot.lines else "no rank has reported, and the log is empty")
    if not job.logs and job.state not in WAITING:
        lines.append("the path of its log is unknown (an interactive job has no log, and Slurm "
                     "forgets the others): pass --log FILE")
    if snapshot.problem:
        lines.append(f"ERROR {snapshot.problem}")
    lines += [f"MISMATCH {clean(str(one))}" for one in snapshot.mismatches]
    return lines


def short_reason(row: RankHealth) -> str:
    text = clean(row.reason)
    return text if len(text) <= MAX_REASON else text[:MAX_REASON - 3].rstrip() + "..."


def cells(row: RankHealth) -> tuple[str, ...]:
    rank = row.status
    if rank is None:
        return str(row.rank), "-", "-", row.health, *"------", short_reason(row)
    memory = gib(rank.memory_used)
    if rank.memory_total:
        memory += f"/{gib(rank.memory_total)}"
    of = f"/{rank.train_iters}" if rank.train_iters else ""
    return (str(row.rank), clean(rank.node), number(rank.gpu, "d"), row.health,
            f"{rank.iteration}{of}", number(rank.milliseconds, ".1f"), number(rank.loss, ".4f"),
            number(rank.tflops, ".3g"), f"{memory} GiB", gib(rank.memory_peak), short_reason(row))


def visible_rows(snapshot: Snapshot, limit: int = MAX_ROWS) -> tuple[list[RankHealth], str]:
    """Return the rows to show, and a line about those that are left out (empty if none is)."""
    if len(snapshot.rows) <= limit:
        return snapshot.rows, ""
    healthy = (liveness.RUNNING, liveness.DONE)
    rows = sorted(snapshot.rows, key=lambda row: (row.health in healthy, row.rank))
    omitted = Counter(row.health for row in rows[limit:])
    counts = ", ".join(f"{count} {health}" for health, count in omitted.items())
    return rows[:limit], f"... and {omitted.total()} more rank(s): {counts}"


def as_text(snapshots: Sequence[Snapshot], count: int | None = None) -> str:
    """Return the jobs as plain lines.

    Args:
        snapshots: the jobs.
        count: lines of each node's files; None for no details.
    """
    blocks = []
    for snapshot in snapshots:
        rows, omitted = visible_rows(snapshot)
        table = [HEAD, *map(cells, rows)] if rows else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [title(snapshot)]
        for words in table:
            lines.append("  " + "  ".join(
                f"{word:>{width}}" if name in RIGHT_ALIGNED else f"{word:<{width}}"
                for word, width, name in zip(words, widths, HEAD, strict=True)).rstrip())
        if omitted:
            lines.append(f"  {omitted}")
        more = [] if count is None else [line.text for line in details.describe(snapshot, count)]
        blocks.append("\n".join([*lines, *(f"  {note}" for note in [*notes(snapshot), *more])]))
    return "\n\n".join(blocks)


def shorten_to_terminal(snapshots: Sequence[Snapshot], foot: str, console: Console,
                    count: int | None = None) -> RenderableType:
    """Return the jobs, shortened to fit the terminal: first the files' lines, then the ranks.

    Args:
        snapshots: the jobs.
        foot: the last line.
        count: lines of each node's files; None for no details.
    """
    limit = MAX_ROWS
    while True:
        table = as_table(snapshots, foot, limit, count)
        if not limit or len(console.render_lines(table, pad=False)) < console.height:
            return table
        if count:
            count -= 1
        else:
            limit = limit * 3 // 4


def as_table(snapshots: Sequence[Snapshot], foot: str = "", limit: int = MAX_ROWS,
             count: int | None = None) -> RenderableType:
    """Return the jobs as rich tables.

    Args:
        snapshots: the jobs.
        foot: the last line.
        limit: ranks of one job to show.
        count: lines of each node's files; None for no details.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for snapshot in snapshots:
        rows, omitted = visible_rows(snapshot, limit)
        lines = notes(snapshot)
        parts.append(Text(title(snapshot), style="bold"))
        parts += [Text(note, style="red") for note in lines if note.startswith(HIGHLIGHTED)]
        if rows:
            table = Table(box=None, padding=(0, 1), header_style="dim")
            for name in HEAD:
                table.add_column(name, justify="right" if name in RIGHT_ALIGNED else "left",
                                 overflow="ellipsis" if name == "NODE" else "fold",
                                 no_wrap=name != "WHY")
            for row in rows:  # Text, because rich would read a log's brackets as markup
                table.add_row(*(Text(word, style=COLORS[row.health] if name == "STATE" else "")
                                for name, word in zip(HEAD, cells(row), strict=True)))
            parts.append(table)
        if omitted:
            parts.append(Text(omitted))
        parts += [Text(note, style="dim") for note in lines if not note.startswith(HIGHLIGHTED)]
        if count is not None:
            parts += [Text(line.text, style=line.style, no_wrap=True, overflow="ellipsis")
                      for line in details.describe(snapshot, count)]
        parts.append(Text(""))
    return Group(*parts, Text(foot, style="dim"))
