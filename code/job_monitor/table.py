"""The picture of jobs as text: plain lines, or a rich table on a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from job_monitor import details, liveness
from job_monitor.causes import clean
from job_monitor.picture import WAITING, Picture, Row

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HEAD = ("RANK", "NODE", "GPU", "STATE", "ITERATION", "MS/ITER", "LOSS", "TFLOP/S", "MEMORY", "PEAK",
        "WHY")
COLORS = {liveness.RUNNING: "green", liveness.DONE: "green", liveness.STALLED: "yellow",
           liveness.HALTED: "yellow", liveness.DEAD: "red", liveness.FAILED: "red"}
RIGHT = {"RANK", "GPU", "ITERATION", "MS/ITER", "LOSS", "TFLOP/S", "MEMORY", "PEAK"}
WHY = 90  # characters; the whole of it is in the line of the ERROR
FEW = 64  # rows of one job; of more, those that are not well come first
NOTED = ("ERROR", "MISMATCH")


def gib(size: float | None) -> str:
    if size is None or not math.isfinite(size):
        return "-"
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.2f}"


def figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def title(picture: Picture) -> str:
    job, latest = picture.job, picture.latest
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


def notes(picture: Picture) -> list[str]:
    """Return the lines below a job's table."""
    latest, said = picture.latest, []
    if picture.device:
        seconds = max((rank.virtual_seconds or 0 for rank in picture.files), default=0)
        clock = f"; virtual time {seconds:.1f} s" if seconds else ""
        said.append(f"times, TFLOP/s and memory are modeled: {clean(picture.device)}{clock}")
    if picture.source == "log" and latest.milliseconds is not None and (
            picture.job.state not in WAITING):
        said.append(f"by the log alone (no rank wrote what it does): "
                    f"{latest.milliseconds:.1f} ms per iteration, "
                    f"loss {figure(latest.loss, '.4f')}, TFLOP/s {figure(latest.tflops, '.3g')}")
    elif picture.source == "log" and picture.job.state == "RUNNING" and picture.job.logs:
        said.append("no rank has reported, and the log has no iteration yet"
                    if picture.lines else "no rank has reported, and the log is empty")
    if not picture.job.logs and picture.job.state not in WAITING:
        said.append("its log is not known (an interactive job has none, and Slurm forgets where "
                    "others are): --log FILE")
    if picture.problem:
        said.append(f"ERROR {picture.problem}")
    said += [f"MISMATCH {clean(str(one))}" for one in picture.mismatches]
    return said


def why(row: Row) -> str:
    text = clean(row.reason)
    return text if len(text) <= WHY else text[:WHY - 3].rstrip() + "..."


def cells(row: Row) -> tuple[str, ...]:
    rank = row.file
    if rank is None:
        return str(row.rank), "-", "-", row.word, *"------", why(row)
    memory = gib(rank.memory_used)
    if rank.memory_total:
        memory += f"/{gib(rank.memory_total)}"
    of = f"/{rank.train_iters}" if rank.train_iters else ""
    return (str(row.rank), clean(rank.node), figure(rank.gpu, "d"), row.word,
            f"{rank.iteration}{of}", figure(rank.milliseconds, ".1f"), figure(rank.loss, ".4f"),
            figure(rank.tflops, ".3g"), f"{memory} GiB", gib(rank.memory_peak), why(row))


def chosen(picture: Picture, most: int = FEW) -> tuple[list[Row], str]:
    """The rows to show, and what those are that are left out; empty where none is."""
    if len(picture.rows) <= most:
        return picture.rows, ""
    well = (liveness.RUNNING, liveness.DONE)
    rows = sorted(picture.rows, key=lambda row: (row.word in well, row.rank))
    left = Counter(row.word for row in rows[most:])
    words = ", ".join(f"{count} {word}" for word, count in left.items())
    return rows[:most], f"... and {left.total()} more rank(s): {words}"


def plain(pictures: Sequence[Picture], count: int | None = None) -> str:
    """Return the jobs as plain lines, with `count` lines of each node's files; None: no details."""
    blocks = []
    for picture in pictures:
        rows, left = chosen(picture)
        table = [HEAD, *map(cells, rows)] if rows else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [title(picture)]
        for words in table:
            lines.append("  " + "  ".join(
                f"{word:>{width}}" if name in RIGHT else f"{word:<{width}}"
                for word, width, name in zip(words, widths, HEAD, strict=True)).rstrip())
        if left:
            lines.append(f"  {left}")
        more = [] if count is None else [line.text for line in details.of(picture, count)]
        blocks.append("\n".join([*lines, *(f"  {note}" for note in [*notes(picture), *more])]))
    return "\n\n".join(blocks)


def fitting(pictures: Sequence[Picture], foot: str, console: Console, count: int | None = None
            ) -> RenderableType:
    """Return what fits on the terminal: lines of files are left out first, then ranks.

    Args:
        pictures: the jobs.
        foot: the last line.
        console: the terminal.
        count: lines of each node's files; None: no details.
    """
    most = FEW
    while True:
        shown = rich(pictures, foot, most, count)
        if not most or len(console.render_lines(shown, pad=False)) < console.height:
            return shown
        if count:
            count -= 1
        else:
            most = most * 3 // 4


def rich(pictures: Sequence[Picture], foot: str = "", most: int = FEW, count: int | None = None
         ) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for picture in pictures:
        rows, left = chosen(picture, most)
        said = notes(picture)
        parts.append(Text(title(picture), style="bold"))
        parts += [Text(note, style="red") for note in said if note.startswith(NOTED)]
        if rows:
            table = Table(box=None, padding=(0, 1), header_style="dim")
            for name in HEAD:
                table.add_column(name, justify="right" if name in RIGHT else "left",
                                 overflow="ellipsis" if name == "NODE" else "fold",
                                 no_wrap=name != "WHY")
            for row in rows:  # Text: a log's brackets are not markup
                table.add_row(*(Text(word, style=COLORS[row.word] if name == "STATE" else "")
                                for name, word in zip(HEAD, cells(row), strict=True)))
            parts.append(table)
        if left:
            parts.append(Text(left))
        parts += [Text(note, style="dim") for note in said if not note.startswith(NOTED)]
        if count is not None:
            parts += [Text(line.text, style=line.style, no_wrap=True, overflow="ellipsis")
                      for line in details.of(picture, count)]
        parts.append(Text(""))
    return Group(*parts, Text(foot, style="dim"))
