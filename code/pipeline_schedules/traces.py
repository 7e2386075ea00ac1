"""Read and write timelines as trace-event files with one process per rank.

Perfetto (ui.perfetto.dev) and chrome://tracing open them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline_schedules.actions import BACKWARD, FORWARD, WEIGHT, Action, ScheduleError
from pipeline_schedules.clock import Durations
from pipeline_schedules.parsing import parse
from pipeline_schedules.simulation import Timeline, simulate

FILE = "timeline.json"  # the file that --timeline FOLDER writes
SECTIONS = {FORWARD: "forward-compute", BACKWARD: "backward-compute", WEIGHT: "backward-compute"}
Drawable = Timeline | Mapping[int, Sequence[Sequence]] | Sequence[object] | str | Path


def timeline_of(drawable: Drawable, durations: Durations | None = None, dp: int = 0, tp: int = 0
                ) -> Timeline:
    """Return the timeline of anything that has one.

    Args:
        drawable: a timeline; a schedule that parse() reads; recorded spans as {stage: [(kind,
            micro_batch, chunk, start, end)]}; or the folder or the file of a run with --timeline.
        durations: times of the passes, to simulate a schedule.
        dp: the data-parallel replica, to read from a file.
        tp: the tensor-parallel rank, to read from a file.

    Raises:
        ScheduleError: it is none of these, or is malformed.
    """
    if isinstance(drawable, Timeline):
        return drawable
    if isinstance(drawable, str | Path):
        return read(drawable, dp, tp)
    if isinstance(drawable, Mapping):
        return Timeline.of(drawable)
    return simulate(parse(drawable), durations)


def measured(timeline: Timeline) -> Durations:
    """Return the mean times of each stage's passes in a recorded run, for simulate().

    Raises:
        ScheduleError: a stage has no forwards or no backwards.
    """
    chunks = 1 + max(span.chunk for spans in timeline.spans.values() for span in spans)
    split = any(span.kind == WEIGHT for spans in timeline.spans.values() for span in spans)
    mean_times: dict[str, list[float]] = {FORWARD: [], BACKWARD: [], WEIGHT: []}
    for stage, spans in timeline.spans.items():
        for kind, means in mean_times.items():
            lengths = [span.end - span.start for span in spans if span.kind == kind]
            if not lengths and (kind != WEIGHT or split):
                raise ScheduleError(f"recorded: stage {stage} has no {kind}, so its time is not "
                                    "known")
            means.append(chunks * sum(lengths) / len(lengths) if lengths else 0)
    return Durations(mean_times[FORWARD], mean_times[BACKWARD], mean_times[WEIGHT])


def replayed(timeline: Timeline) -> Timeline:
    """Simulate a recorded run's own order with each stage's mean times and instant communication.

    The recorded run takes longer because of communication and the variance of its actions' times.
    """
    order = [[Action(*span[:3]) for span in spans] for spans in timeline.spans.values()]
    return simulate(order, measured(timeline))


def perfetto(ranks: list[dict], label: str = "") -> dict:
    """Return a trace with one process per rank, and times in microseconds from the first start.

    Args:
        ranks: per rank, a dictionary with "rank", "pp", "dp", "tp", and "sections", a list of
            (name, start in seconds, end in seconds, action as a tuple or None).
        label: added to each title, such as the name of a modeled GPU.
    """
    begin = min(start for rank in ranks for _, start, _, _ in rank["sections"])
    events = []
    for rank in ranks:
        coordinates = {axis: rank[axis] for axis in ("pp", "dp", "tp")}
        title = f"rank {rank['rank']}: stage {rank['pp']}, dp {rank['dp']}, tp {rank['tp']}"
        title += f" ({label})" if label else ""
        pid = rank["rank"]
        events += [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0,
                    "args": {"name": title}},
                   {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0,
                    "args": {"sort_index": pid}}]
        for name, start, end, action in rank["sections"]:
            event = {"ph": "X", "pid": pid, "tid": 0, "cat": name, "name": name,
                     "ts": 1e6 * (start - begin), "dur": 1e6 * (end - start),
                     "args": coordinates}
            if action is not None:
                event["name"] = str(Action(*action))
                event["args"] = {**coordinates, "action": list(action)}
            events.append(event)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def export(drawable: Drawable, path: str | Path, milliseconds: float = 1) -> None:
    """Write a timeline as a trace file.

    Args:
        drawable: anything that timeline_of accepts.
        path: the file.
        milliseconds: the timeline's unit of time, in milliseconds.

    Raises:
        ScheduleError: timeline_of rejects it, or the file cannot be written.
    """
    timeline = timeline_of(drawable)
    seconds = milliseconds / 1e3
    ranks = [{"rank": rank, "pp": stage, "dp": 0, "tp": 0, "sections": [
        (SECTIONS[span.kind], float(span.start) * seconds, float(span.end) * seconds, span[:3])
        for span in spans]} for rank, (stage, spans) in enumerate(timeline.spans.items())]
    try:
        write(Path(path),
              perfetto(ranks, "simulated" if isinstance(drawable, list | tuple) else ""))
    except OSError as error:
        raise ScheduleError(f"{path}: {error.strerror}") from error


def write(path: Path, trace: dict) -> None:
    """Write the file atomically."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(trace, separators=(",", ":")))
    os.replace(unfinished, path)


def read(path: str | Path, dp: int = 0, tp: int = 0) -> Timeline:
    """Return the timeline of one pipeline in a trace, in milliseconds.

    Args:
        path: the trace, or the folder that contains it.
        dp: the pipeline's data-parallel replica.
        tp: its tensor-parallel rank.

    Raises:
        ScheduleError: the file is not a recorded timeline, or has no such ranks.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    try:
        events = json.loads(path.read_text())["traceEvents"]
        recorded: dict[int, list] = {}
        for event in events:
            args = event.get("args", {})
            if "action" in args and (args["dp"], args["tp"]) == (dp, tp):
                start, length = event["ts"] / 1e3, event["dur"] / 1e3
                recorded.setdefault(args["pp"], []).append(
                    (*args["action"], start, start + length))
        return Timeline.of(recorded)
    except OSError as error:
        raise ScheduleError(f"{path}: {error.strerror}; --timeline FOLDER writes FOLDER/{FILE}"
                        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, ScheduleError) as error:
        raise ScheduleError(f"{path} contains no timeline of dp {dp}, tp {tp} that --timeline "
                            f"wrote ({error})") from error
