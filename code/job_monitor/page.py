"""The page about a job: what its template shows. It runs no script and fetches nothing."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from job_monitor import figures, liveness, logs, picture
from job_monitor.asked import words
from job_monitor.causes import EXIT, WORLD
from job_monitor.picture import Picture
from job_monitor.table import figure, gib, why
from labcore.html import render

if TYPE_CHECKING:
    from markupsafe import Markup

KEY = ("world_size", "data_parallel_size", "tensor_model_parallel_size",
       "pipeline_model_parallel_size", "schedule", "num_layers", "hidden_size",
       "num_attention_heads", "seq_length", "padded_vocab_size", "micro_batch_size",
       "global_batch_size", "train_iters", "fp16", "bf16", "recompute_granularity",
       "sequence_parallel", "use_distributed_optimizer", "use_flash_attn", "lr", "device")
BEFORE, AFTER, LAST = 8, 6, 30  # lines of the log around the root cause, and at its end
LONGEST = 2000  # characters of one of them
CPU = "the CPU"  # what a rank on none calls its device
OVERHEAD = "CUDA's context, NCCL's buffers and what PyTorch reserves"
MOST_BARS, MOST_ROWS = 32, 256
GOOD = {"COMPLETED", "RUNNING", "COMPLETING", "PENDING"}


class Plot(NamedTuple):
    """A figure and its caption; the figure is None where no value can be drawn."""

    drawn: Markup | None
    text: str
    warning: str = ""


def document(shown: Picture, script: str, accounting: Sequence[dict[str, str]],
             timeline: bytes | None, written: str) -> str:
    """Return the whole page.

    Args:
        shown: what is known of the job.
        script: the batch script, as it was submitted.
        accounting: Slurm's records of the job and its steps.
        timeline: the bytes of an SVG file that shows the pipeline.
        written: the time of writing.
    """
    steady = _steady(shown)
    return render(
        "job_monitor/report.html.j2", shown=shown, script=script, written=written,
        accounting=accounting, command=words(shown.job.command), excerpt=_excerpt(shown),
        settings=[(name, shown.config[name]) for name in KEY
                  if shown.config.get(name) not in (None, "None", "False")],
        median=statistics.median(steady) if steady else None, times=_times(shown, steady),
        losses=_losses(shown), memory=_memory(shown),
        # As an image, in which no script runs.
        timeline=None if timeline is None else base64.b64encode(timeline).decode(),
        columns=[name for name in accounting[0] if any(row.get(name) for row in accounting)]
        if accounting else [],
        end=list(map(cut, shown.lines[-LAST:])), on_card=any(one.on_card for one in shown.files),
        most_rows=MOST_ROWS, good_states=GOOD, good_words=(liveness.RUNNING, liveness.DONE),
        exit_tier=EXIT, figure=figure, gib=gib, why=why)


def cut(line: str) -> str:
    """Shorten a line: a progress bar without line breaks may have megabytes."""
    left = len(line) - LONGEST
    return line if left <= 0 else f"{line[:LONGEST]}... ({left} more characters)"


def _excerpt(shown: Picture) -> list[tuple[str, bool]]:
    """Return the log around the root cause, each line with whether it is the cause."""
    if shown.root is None:
        return []
    line = shown.root.line
    begin = max(0, line - BEFORE)
    return [(cut(text), begin + index == line)
            for index, text in enumerate(shown.lines[begin:line + AFTER])]


def _steady(shown: Picture) -> list[float]:
    """Milliseconds of all lines but the first of each start, which holds the start."""
    every, steady, fresh = [], [], True
    for line in shown.lines:
        fresh = fresh or WORLD in line
        one = logs.parse_line(line)
        if one is None or not math.isfinite(one.milliseconds):
            continue
        every.append(one.milliseconds)
        if not fresh:
            steady.append(one.milliseconds)
        fresh = False
    return steady or every


def _times(shown: Picture, steady: Sequence[float]) -> Plot | None:
    """Return the iteration times and what follows from them.

    Args:
        shown: what is known of the job.
        steady: milliseconds of the iterations that count.
    """
    if not steady:
        return None
    points = [(float(one.iteration), one.milliseconds) for one in shown.iterations
              if one.milliseconds is not None]
    median = statistics.median(steady)
    text = (f"Milliseconds per iteration: median {median:.1f}, from {min(steady):.1f} to "
            f"{max(steady):.1f}"
            + (" (without the first line of each start)." if len(points) > 1 else "."))
    said = [text]
    batch, length = shown.latest.global_batch, shown.config.get("seq_length", "")
    if batch and length.isdigit() and median > 0:
        said.append(f"{1000 * batch * int(length) / median:,.0f} tokens per second.")
    if shown.latest.tflops is not None:
        said.append(f"{shown.latest.tflops:.3g} TFLOP/s per device at the last.")
    if figures.ceiling([value for _, value in points if math.isfinite(value)]) < max(steady):
        said.append("Points above the figure are arrowheads.")
    return Plot(figures.line(points, "iteration", "ms", text, from_zero=True), " ".join(said))


def _losses(shown: Picture) -> Plot | None:
    points = [(float(one.iteration), one.loss) for one in shown.iterations if one.loss is not None]
    if not points:
        return None
    bad = sum(not math.isfinite(value) for _, value in points)
    text = (f"Training loss, from {points[0][1]:.4f} at iteration {points[0][0]:.0f} to "
            f"{points[-1][1]:.4f} at iteration {points[-1][0]:.0f}.")
    return Plot(figures.line(points, "iteration", "loss", text) if bad < len(points) else None,
                text, f"{bad} value(s) are no numbers (nan or inf)." if bad else "")


def _memory(shown: Picture) -> Plot | None:
    """Return what each rank used, from its file, or else from the line that the trainer prints
    once."""
    files = [one for one in shown.files if one.memory_used is not None]
    on_card = any(one.on_card for one in files)
    # Memory in use on the GPU and the tensors' peak are two things: a bar is one of them.
    rows = [(f"rank {one.number} ({one.node})", one.memory_used if one.on_card else
             max(one.memory_used, one.memory_peak or 0), one.memory_total) for one in files]
    if not rows:
        rows = [(f"rank {rank}", max(used, peak), None)
                for rank, (used, peak) in sorted(picture.log_memory(shown.lines).items())]
    if not rows:
        return None
    top = max(size for _, size, _ in rows)
    text = f"Memory per rank ({_kind_of_memory(shown)}); the highest peak is {gib(top)} GiB."
    if on_card:
        peak = max((one.memory_peak or 0 for one in files), default=0)
        text = (f"Memory in use on each rank's card at its last word, with {OVERHEAD}: at most "
                f"{gib(top)} GiB. Its tensors' peak: at most {gib(peak)} GiB.")
    drawn = figures.bars([(name, size / 2**30, whole and whole / 2**30)
                          for name, size, whole in rows[:MOST_BARS]], "GiB", text)
    if len(rows) > MOST_BARS:
        text += f" The first {MOST_BARS} of {len(rows)} ranks."
    return Plot(drawn, text)


def _kind_of_memory(shown: Picture) -> str:
    """Return what the memory figures measure: tensors on a GPU, or a process on the CPU."""
    devices = {one.device for one in shown.files}
    on_gpu = devices != {CPU} if devices else "cuda" in shown.config.get("device", "")
    return "tensors on the GPU" if shown.device or on_gpu else "the process's memory"
