"""Render the page about a job. The page runs no script and loads nothing from the network."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from job_monitor import figures, liveness, logs
from job_monitor.causes import EXIT, WORLD
from job_monitor.requested import split_command
from job_monitor.snapshot import Snapshot, log_memory
from job_monitor.table import gib, number, short_reason
from job_monitor.timeline import KINDS, Lane
from labcore.html import render

if TYPE_CHECKING:
    from markupsafe import Markup

KEY_SETTINGS = (
    "world_size", "data_parallel_size", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "schedule", "num_layers", "hidden_size",
    "num_attention_heads", "seq_length", "padded_vocab_size", "micro_batch_size",
    "global_batch_size", "train_iters", "fp16", "bf16", "recompute_granularity",
    "sequence_parallel", "use_distributed_optimizer", "use_flash_attn", "lr", "device")
BEFORE, AFTER, LAST = 8, 6, 30  # lines of the log around the root cause, and at its end
MAX_LENGTH = 2000  # characters of one of these lines
CPU = "the CPU"  # the device of a rank without a GPU
OVERHEAD = "CUDA's context, NCCL's buffers, and PyTorch's reserved memory"
MAX_BARS, MAX_ROWS = 32, 256
MAX_SPANS = 40_000  # of a timeline; a span is 150 bytes of the page
ZOOMS = (1, 2, 4, 8, 16, 32)
GOOD_STATES = {"COMPLETED", "RUNNING", "COMPLETING", "PENDING"}


class Plot(NamedTuple):
    """A figure with its caption and a warning; the figure is None if no value can be drawn."""

    figure: Markup | None
    caption: str
    warning: str = ""


def render_page(snapshot: Snapshot, script: str, accounting: Sequence[dict[str, str]],
                lanes: Sequence[Lane], missing: str, written: str) -> str:
    """Return the HTML of the page.

    Args:
        snapshot: the job.
        script: the batch script that was submitted.
        accounting: Slurm's records of the job and its steps.
        lanes: the ranks of the recorded timeline, if there is one.
        missing: why there is no timeline.
        written: the time of writing.
    """
    steady = _steady_times(snapshot)
    return render(
        "job_monitor/report.html.j2", snapshot=snapshot, script=script, written=written,
        accounting=accounting, command=split_command(snapshot.job.command),
        excerpt=_excerpt(snapshot),
        settings=[(name, snapshot.config[name]) for name in KEY_SETTINGS
                  if snapshot.config.get(name) not in (None, "None", "False")],
        median=statistics.median(steady) if steady else None, times=_times(snapshot, steady),
        losses=_losses(snapshot), memory=_memory(snapshot),
        missing=missing, **_timeline(snapshot, lanes),
        columns=[name for name in accounting[0] if any(row.get(name) for row in accounting)]
        if accounting else [],
        end=list(map(truncate, snapshot.lines[-LAST:])),
        on_gpu=any(one.on_card for one in snapshot.statuses),
        max_rows=MAX_ROWS, good_states=GOOD_STATES, good_health=(liveness.RUNNING, liveness.DONE),
        exit_tier=EXIT, number=number, gib=gib, short_reason=short_reason)


def truncate(line: str) -> str:
    """Shorten a line, because a progress bar without line breaks can have megabytes."""
    rest = len(line) - MAX_LENGTH
    return line if rest <= 0 else f"{line[:MAX_LENGTH]}... ({rest} more characters)"


def _excerpt(snapshot: Snapshot) -> list[tuple[str, bool]]:
    """Return the log's lines around the root cause, and whether each is the root cause."""
    if snapshot.root is None:
        return []
    line = snapshot.root.line
    begin = max(0, line - BEFORE)
    return [(truncate(text), begin + index == line)
            for index, text in enumerate(snapshot.lines[begin:line + AFTER])]


def _steady_times(snapshot: Snapshot) -> list[float]:
    """Return iteration times in milliseconds, without the first line after each start.

    That line's average includes the startup. If there are no other lines, all of them count.
    """
    every, steady, after_start = [], [], True
    for line in snapshot.lines:
        after_start = after_start or WORLD in line
        iteration = logs.parse_line(line)
        if iteration is None or not math.isfinite(iteration.milliseconds):
            continue
        every.append(iteration.milliseconds)
        if not after_start:
            steady.append(iteration.milliseconds)
        after_start = False
    return steady or every


def _times(snapshot: Snapshot, steady: Sequence[float]) -> Plot | None:
    """Plot the iteration times, with their median and the throughput.

    Args:
        snapshot: the job.
        steady: iteration times in milliseconds, without startup.
    """
    if not steady:
        return None
    points = [(float(one.iteration), one.milliseconds) for one in snapshot.iterations
              if one.milliseconds is not None]
    median = statistics.median(steady)
    text = (f"Milliseconds per iteration: median {median:.1f}, from {min(steady):.1f} to "
            f"{max(steady):.1f}"
            + (" (without the first line of each start)." if len(points) > 1 else "."))
    caption = [text]
    batch, length = snapshot.latest.global_batch, snapshot.config.get("seq_length", "")
    if batch and length.isdigit() and median > 0:
        caption.append(f"{1000 * batch * int(length) / median:,.0f} tokens per second.")
    if snapshot.latest.tflops is not None:
        caption.append(f"{snapshot.latest.tflops:.3g} TFLOP/s per device in the last iteration.")
    if figures.axis_top([value for _, value in points if math.isfinite(value)]) < max(steady):
        caption.append("Arrowheads mark points above the figure.")
    return Plot(figures.line(points, "iteration", "ms", text, from_zero=True), " ".join(caption))


def _losses(snapshot: Snapshot) -> Plot | None:
    points = [(float(one.iteration), one.loss) for one in snapshot.iterations
              if one.loss is not None]
    if not points:
        return None
    bad = sum(not math.isfinite(value) for _, value in points)
    text = (f"Training loss, from {points[0][1]:.4f} at iteration {points[0][0]:.0f} to "
            f"{points[-1][1]:.4f} at iteration {points[-1][0]:.0f}.")
    return Plot(figures.line(points, "iteration", "loss", text) if bad < len(points) else None,
                text, f"{bad} value(s) are not finite (nan or inf)." if bad else "")


def _memory(snapshot: Snapshot) -> Plot | None:
    """Plot the memory of each rank from its status file, or else from the trainer's log."""
    statuses = [one for one in snapshot.statuses if one.memory_used is not None]
    on_gpu = any(one.on_card for one in statuses)
    # A bar is either the memory in use on the GPU or the peak of the tensors.
    rows = [(f"rank {one.number} ({one.node})", one.memory_used if one.on_card else
             max(one.memory_used, one.memory_peak or 0), one.memory_total) for one in statuses]
    if not rows:
        rows = [(f"rank {rank}", max(used, peak), None)
                for rank, (used, peak) in sorted(log_memory(snapshot.lines).items())]
    if not rows:
        return None
    top = max(size for _, size, _ in rows)
    text = f"Memory per rank ({_kind_of_memory(snapshot)}); the highest peak is {gib(top)} GiB."
    if on_gpu:
        peak = max((one.memory_peak or 0 for one in statuses), default=0)
        text = (f"Memory in use on each rank's GPU at its last update, including {OVERHEAD}: at "
                f"most {gib(top)} GiB. Peak of its tensors: at most {gib(peak)} GiB.")
    drawn = figures.bars([(name, size / 2**30, total and total / 2**30)
                          for name, size, total in rows[:MAX_BARS]], "GiB", text)
    if len(rows) > MAX_BARS:
        text += f" The first {MAX_BARS} of {len(rows)} ranks."
    return Plot(drawn, text)


def _timeline(snapshot: Snapshot, lanes: Sequence[Lane]) -> dict[str, object]:
    """Return what the timeline's template needs: lanes with their nodes, and stages' shares."""
    if not lanes:
        return {"lanes": [], "nodes": [], "zooms": []}
    end = max(span.end for lane in lanes for span in lane.spans)
    node_of = {status.number: status.node for status in snapshot.statuses}
    nodes = list(dict.fromkeys(node_of[lane.rank] for lane in lanes if lane.rank in node_of))
    spans, shown = 0, []
    for lane in lanes:
        spans += len(lane.spans)
        if spans <= MAX_SPANS:
            node = node_of.get(lane.rank)
            shown.append((lane, 1 + nodes.index(node) if node in nodes else 0))
    stages = []
    for stage, ranks in groupby(sorted(lanes, key=lambda one: one.stage), lambda one: one.stage):
        shares = [one.shares(end) for one in ranks]
        stages.append((stage, {kind: statistics.fmean(share[kind] for share in shares)
                               for kind in KINDS}))
    fine = figures.nice_step(end, 40)
    coarse = {round(value / fine) for value in figures.ticks(0.0, end)}
    ticks = [(100 * value / end, figures.label(value) + (" ms" if not value else ""),
              round(value / fine) not in coarse)
             for value in (fine * one for one in range(int(end / fine) + 1))]
    return {"lanes": shown, "all_lanes": len(lanes), "stages": stages, "kinds": KINDS,
            "nodes": nodes, "zooms": ZOOMS, "ticks": ticks, "scale": 100 / end,
            "milliseconds": end}


def _kind_of_memory(snapshot: Snapshot) -> str:
    """Return what the memory figures measure: tensors on a GPU, or a process on the CPU."""
    devices = {one.device for one in snapshot.statuses}
    on_gpu = devices != {CPU} if devices else "cuda" in snapshot.config.get("device", "")
    return "tensors on the GPU" if snapshot.device or on_gpu else "the process's memory"
