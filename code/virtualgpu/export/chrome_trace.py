"""A trace of a virtual GPU in Chrome's format, as torch.profiler writes it for a real GPU.

TensorBoard's profiler and Perfetto read it. Its times are those of the virtual clock, which all
ranks share, in microseconds with three decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from virtualgpu.core import stacks
from virtualgpu.core.card import Card, generation
from virtualgpu.core.clock import COMPUTE
from virtualgpu.export.trace import RankPlacement
from virtualgpu.export.trace_events import BACKWARD_THREAD, RELEASES, TraceBuilder


def text(card: Card, place: RankPlacement, notes: Iterable) -> str:
    """Return the trace file, as JSON.

    Args:
        card: the GPU model.
        place: the rank and its GPU.
        notes: notes of a TraceRecorder.
    """
    trace = TraceBuilder(card, place)
    for note in notes:
        trace.READERS[type(note)](trace, note)
    trace.close()
    about = {"schemaVersion": 1, "displayTimeUnit": "ms", "virtualGpu": {
                 "card": card.name, "note": "times and memory are modeled, nothing was measured",
                 "software": stacks.describe(card)},
             "deviceProperties": [properties(card, index) for index in range(place.cards)],
             "distributedInfo": {"backend": "nccl", "rank": place.rank, "world_size": place.world}}
    # TensorBoard's profiler plugin appends its counters after the last bracket, so events come
    # last.
    return json.dumps({**about, "traceEvents": [*titles(trace), *trace.events]},
                      separators=(",", ":"))


def properties(card: Card, index: int) -> dict[str, object]:
    major, minor, threads = generation(card)
    return {"id": index, "name": f"{card.product} (virtual)", "totalGlobalMem": card.memory,
            "computeMajor": major, "computeMinor": minor, "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": threads, "warpSize": 32, "numSms": card.sms}


def titles(trace: TraceBuilder) -> Iterator[dict]:
    """Yield the names of the rows, the label that marks times as modeled, and the total time."""
    title = f"virtual {trace.card.name}"
    rows = [(trace.host, "rank", f"rank {trace.place.rank}: host of a {title}", trace.place.rank),
            (trace.place.index, "card", f"rank {trace.place.rank}: {title}", 5_000_000)]
    for pid, _, name, order in rows:
        for what, args in (("process_name", {"name": name}),
                           ("process_labels", {"labels": "virtual"}),
                           ("process_sort_index", {"sort_index": order})):
            yield {"ph": "M", "name": what, "pid": pid, "tid": 0, "ts": 0, "args": args}
    threads = [(trace.host, trace.host, "main thread"),
               (trace.host, trace.host + BACKWARD_THREAD, "autograd (backward)"),
               (trace.host, trace.host + RELEASES, "memory given back"),
               *((trace.place.index, number, f"stream {number}: " + (
                   name if name == COMPUTE else f"NCCL, ranks {name.partition(' ')[2]}"))
                 for name, number in trace.streams.items())]
    for order, (pid, tid, name) in enumerate(threads):
        for what, args in (("thread_name", {"name": name}),
                           ("thread_sort_index", {"sort_index": order})):
            yield {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}
    yield from trace.levels.counters(trace.place.index)
    begin = min((event["ts"] for event in trace.events), default=0.0)
    end = max((event["ts"] + event.get("dur", 0.0) for event in trace.events), default=0.0)
    yield {"ph": "i", "cat": "user_annotation", "s": "g", "pid": trace.host, "tid": trace.host,
           "name": f"{title}: times and memory are modeled", "ts": begin,
           "args": {"software stack": stacks.describe(trace.card)}}
    yield {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
           "tid": "PyTorch Profiler", "ts": begin, "dur": round(1000 * (end - begin)) / 1000,
           "args": {"virtual": trace.card.name}}
