"""The sections of a job's report. Whatever comes from a log, a script or Slurm is escaped by
markup.py; the page runs no script and fetches nothing."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from job_monitor import figures, liveness, logs, picture
from job_monitor.asked import words
from job_monitor.causes import EXIT, WORLD
from job_monitor.markup import Markup, element, grid, join, pairs, table, void
from job_monitor.picture import Picture
from job_monitor.table import figure, gib, why

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
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


def virtual(shown: Picture) -> Markup | None:
    """What stands at every modelled figure; None where figures are measured."""
    if not shown.device:
        return None
    return element("span", f" Modelled: {shown.device}.", class_="virtual")


def document(shown: Picture, script: str, accounting: Sequence[dict[str, str]],
             timeline: bytes | None, written: str) -> Markup:
    """The whole page. timeline: an SVG file's bytes."""
    job = shown.job
    heading = f"Job {job.number}: {job.name or 'without a name'}"
    body = [element("header", element("h1", heading), summary(shown)), trouble(shown),
            asked(shown, script), configuration(shown), times(shown), losses(shown),
            memory(shown), pipeline(shown, timeline), ranks_table(shown), errors(shown),
            ledger(accounting), log_end(shown),
            element("footer", f"Written on {written} by lab report {job.number}. Figures: "
                    + ("the ranks' own files and the log." if shown.source == "ranks" else
                       "the log alone, since no rank wrote what it does."))]
    head = element("head", void("meta", charset="utf-8"),
                   void("meta", http_equiv="Content-Security-Policy", content=POLICY),
                   void("meta", name="viewport", content="width=device-width, initial-scale=1"),
                   element("title", heading),
                   element("style", Markup(STYLE.read_text())))
    return Markup("<!DOCTYPE html>\n" + element(
        "html", head, element("body", element("main", *body)), lang="en") + "\n")


def cut(line: str) -> str:
    """A progress bar without a line's end may be megabytes long."""
    left = len(line) - LONGEST
    return line if left <= 0 else f"{line[:LONGEST]}... ({left} more characters)"


def section(title: str, *children: object) -> Markup:
    return element("section", element("h2", title), *children)


def summary(shown: Picture) -> Markup:
    job, latest = shown.job, shown.latest
    kind = "good" if job.state in GOOD else "bad"
    said = [element("span", job.state, class_=f"state {kind}")]
    said.append(f" after {job.elapsed}" if job.elapsed else "")
    said.append(f" on {job.nodes}" if job.nodes else "")
    if latest.iteration:
        of = f" of {latest.train_iters}" if latest.train_iters else ""
        said.append(f"; {latest.iteration}{of} iterations")
    steady = _steady(shown)
    if steady:
        said.append(f"; {statistics.median(steady):.1f} ms per iteration (median)")
    return element("p", *said, ".", virtual(shown))


def trouble(shown: Picture) -> Markup | None:
    """The root cause with the log around it, and what is not as it was asked for."""
    parts: list[object] = []
    if shown.problem:
        parts.append(element("p", element("strong", "What went wrong: "), shown.problem,
                             class_="box"))
    if shown.root is not None:
        line = shown.root.line
        begin = max(0, line - BEFORE)
        excerpt = [element("mark", text) if begin + index == line else text
                   for index, text in enumerate(map(cut, shown.lines[begin:line + AFTER]))]
        parts.append(element("pre", join(join([one, "\n"]) for one in excerpt)))
    for one in shown.mismatches:
        parts.append(element("p", element("strong", "Not as asked: "), str(one),
                             class_="box note"))
    return join(parts) if parts else None


def asked(shown: Picture, script: str) -> Markup:
    job = shown.job
    command = words(job.command)
    rows = [("script", element("code", command[0]) if command else "not known"),
            ("arguments", element("code", " ".join(command[1:]) or "none")),
            ("folder", element("code", job.folder)), ("time limit", job.limit),
            ("nodes", job.node_count), ("tasks", job.tasks), ("GPUs", job.gpus),
            ("log", element("code", ", ".join(map(str, job.logs)) or "not known"))]
    text = element("details", element("summary", "The script, as it was submitted"),
                   element("pre", script)) if script else None
    return section("What was asked", pairs(row for row in rows if row[1] not in (None, "")), text)


def configuration(shown: Picture) -> Markup | None:
    config = shown.config
    if not config:
        return None
    rows = [(name.replace("_", " "), config[name]) for name in KEY
            if config.get(name) not in (None, "None", "False")]
    everything = element("details", element("summary", f"All {len(config)} arguments"),
                         pairs(sorted(config.items())))
    return section("Configuration, as the trainer read it", grid(rows), everything)


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


def times(shown: Picture) -> Markup | None:
    points = [(float(one.iteration), one.milliseconds) for one in shown.iterations
              if one.milliseconds is not None]
    steady = _steady(shown)
    if not steady:
        return None
    median = statistics.median(steady)
    text = (f"Milliseconds per iteration: median {median:.1f}, from {min(steady):.1f} to "
            f"{max(steady):.1f}"
            + (" (without the first line of each start)." if len(points) > 1 else "."))
    said = [text]
    batch, length = shown.latest.global_batch, shown.config.get("seq_length", "")
    if batch and length.isdigit() and median > 0:
        said.append(f" {1000 * batch * int(length) / median:,.0f} tokens per second.")
    if shown.latest.tflops is not None:
        said.append(f" {shown.latest.tflops:.3g} TFLOP/s per device at the last.")
    if figures.ceiling([value for _, value in points if math.isfinite(value)]) < max(steady):
        said.append(" Points above the figure are arrowheads.")
    drawn = figures.line(points, "iteration", "ms", text, from_zero=True)
    return section("Iteration times", element(
        "figure", drawn, element("figcaption", *said, virtual(shown))))


def losses(shown: Picture) -> Markup | None:
    points = [(float(one.iteration), one.loss) for one in shown.iterations if one.loss is not None]
    if not points:
        if not shown.device or not shown.iterations:
            return None
        return section("Loss", element("p", f"None: a {shown.device} computes no values."))
    finite = [value for _, value in points if math.isfinite(value)]
    bad = len(points) - len(finite)
    text = (f"Training loss, from {points[0][1]:.4f} at iteration {points[0][0]:.0f} to "
            f"{points[-1][1]:.4f} at iteration {points[-1][0]:.0f}.")
    warning = element("strong", f" {bad} value(s) are no numbers (nan or inf).") if bad else None
    drawn = figures.line(points, "iteration", "loss", text) if finite else None
    return section("Loss", element("figure", drawn, element("figcaption", text, warning)))


def memory(shown: Picture) -> Markup | None:
    """What each rank used: by its file, else by the line that the trainer prints once."""
    files = [one for one in shown.files if one.memory_used is not None]
    on_card = any(one.on_card for one in files)
    # In use on the card and the tensors' peak are two things: a bar is one of them.
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
    bars = figures.bars([(name, size / 2**30, whole and whole / 2**30)
                         for name, size, whole in rows[:MOST_BARS]], "GiB", text)
    more = f" The first {MOST_BARS} of {len(rows)} ranks." if len(rows) > MOST_BARS else None
    return section("Memory", element("figure", bars, element(
        "figcaption", text, more, virtual(shown))))


def _kind_of_memory(shown: Picture) -> str:
    """What the trainer's two figures are of: a card's tensors, or a process on the CPU."""
    devices = {one.device for one in shown.files}
    on_gpu = devices != {CPU} if devices else "cuda" in shown.config.get("device", "")
    return "tensors on the GPU" if shown.device or on_gpu else "the process's memory"


def pipeline(shown: Picture, timeline: bytes | None) -> Markup | None:
    if timeline is None:
        return None
    data = base64.b64encode(timeline).decode()  # as an image: a script in it would not run
    step = shown.config.get("timeline_iteration", "")
    return section("Pipeline timeline", element(
        "figure", void("img", src=f"data:image/svg+xml;base64,{data}",
                       alt=f"What every stage did in iteration {step}, over time"),
        element("figcaption", f"Iteration {step}, as it ran.", virtual(shown))))


def ranks_table(shown: Picture) -> Markup | None:
    if not shown.rows:
        return None
    used, peak = ("in use", "tensors' peak") if any(one.on_card for one in shown.files) else (
        "memory", "peak")
    head = ("rank", "node", "GPU", "stage", "state", "iteration", f"{used} (GiB)", f"{peak} (GiB)",
            "of (GiB)", "why")
    rows = []
    for row in shown.rows[:MOST_ROWS]:
        one = row.file
        good = row.word in (liveness.RUNNING, liveness.DONE)
        word = element("span", row.word, class_="good" if good else "bad")
        about = ("-",) * 3 if one is None else (one.node, figure(one.gpu, "d"), one.stage)
        sizes = ("-",) * 4 if one is None else (
            one.iteration, gib(one.memory_used), gib(one.memory_peak), gib(one.memory_total))
        rows.append((row.rank, *about, word, *sizes, why(row)))
    left = len(shown.rows) - len(rows)
    more = element("p", f"{left} more ranks are left out.") if left else None
    return section("Ranks", element("p", virtual(shown)), table(head, rows), more)


def errors(shown: Picture) -> Markup | None:
    if not shown.causes:
        return None
    rows = [("root cause" if one is shown.root else
             "follows" if one.tier == EXIT or shown.root else "noticed", one.kind,
             ", ".join(map(str, one.ranks)) or "-", element("code", one.text),
             *([one.line + 1] if shown.is_whole else ())) for one in shown.causes]
    head = ("", "kind", "ranks", "message", *(["line"] if shown.is_whole else ()))
    return section("Errors in the log", table(head, rows))


def ledger(accounting: Sequence[dict[str, str]]) -> Markup | None:
    if not accounting:
        return None
    if len(accounting) == 1:
        return section("Slurm's accounting", pairs(
            (name, value) for name, value in accounting[0].items() if value))
    names = [name for name in accounting[0] if any(row.get(name) for row in accounting)]
    return section("Slurm's accounting", table(
        names, ([row.get(name, "") for name in names] for row in accounting)))


def log_end(shown: Picture) -> Markup | None:
    if not shown.lines:
        return None
    return section("The end of the log", element("pre", "\n".join(map(cut, shown.lines[-LAST:]))))
