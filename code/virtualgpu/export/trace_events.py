"""Turn the notes of a virtual GPU into events of Chrome's trace format.

Actions of the host that take no modeled time, such as releasing memory or beginning a range, get a
nanosecond each, so that viewers show their order and nesting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.clock import COMPUTE
from virtualgpu.export.kernel_names import (
    CPP,
    KERNEL,
    SET,
    Kernel,
    kernels_of,
    nccl_kernel_name,
    occupancy,
    shapes_of,
)
from virtualgpu.export.memory_levels import MemoryLevels
from virtualgpu.export.trace import (
    AutogradNode,
    CommunicationNote,
    MemoryNote,
    OperationNote,
    RangeNote,
    RankPlacement,
    WaitNote,
)

COMPUTE_STREAM, NCCL_STREAM = 7, 20  # torch's numbers of the default stream and of NCCL's first
CALLS = {KERNEL: "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync", SET: "cudaMemsetAsync"}
FORWARD_THREAD, BACKWARD_THREAD, RELEASES = 0, 1, 2


def nanoseconds(seconds: float) -> int:
    return round(1e9 * seconds)


class TraceBuilder:
    """Builds the events of one rank's trace.

    Attributes:
        card: the GPU model.
        place: the rank and its GPU.
        host: process ID of the host in the trace.
        events: events so far.
        at: time of the host's latest action, in nanoseconds.
        number: the last ID that was given out.
        streams: numbers of the streams, by name.
    """

    def __init__(self, card: Card, place: RankPlacement) -> None:
        self.card, self.place, self.host = card, place, 1000 * (place.rank + 1)
        self.events: list[dict] = []
        self.at = self.number = 0
        self.streams: dict[str, int] = {COMPUTE: COMPUTE_STREAM}
        self.stream_ends: dict[str, int] = {}  # when a stream's last kernel ends
        self.described: dict[tuple, tuple[str, dict, list[Kernel]]] = {}
        self.open_ranges: list[dict] = []  # outermost first
        self.node: AutogradNode = None
        self.node_spans: list[dict] = []
        self.pending: list[MemoryNote] = []  # allocations of the next operation
        self.levels = MemoryLevels()
        self.forwards: dict[int, int] = {}  # start of forward operations, by sequence number

    def tick(self, seconds: float) -> int:
        self.at = max(self.at + 1, nanoseconds(seconds))
        return self.at

    def next(self) -> int:
        self.number += 1
        return self.number

    def event(self, ph: str, cat: str, name: str, at: int, thread: int | None = None,
              stream: str = COMPUTE, **more: object) -> dict:
        """Add an event on a thread of the host, or on a stream of the GPU if `thread` is None."""
        pid, tid = ((self.place.index, self.stream(stream)) if thread is None else
                    (self.host, self.host + thread))
        event = {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at / 1000,
                 **more}
        self.events.append(event)
        return event

    def span(self, cat: str, name: str, at: int, end: int, thread: int | None,
             args: dict, stream: str = COMPUTE) -> dict:
        return self.event("X", cat, name, at, thread, stream, dur=(end - at) / 1000, args=args)

    @staticmethod
    def end(span: dict, at: int) -> None:
        span["dur"] = round(at - 1000 * span["ts"]) / 1000

    def stream(self, name: str) -> int:
        return self.streams.setdefault(name, NCCL_STREAM + 4 * (len(self.streams) - 1))

    def operation(self, note: OperationNote) -> None:
        plan = note.plan
        if not plan.kernels and not self.pending:
            return
        name, args, kernels = self._described(note.key, plan)
        thread = self._on(note.node)
        launching = plan.kernels * self.card.efficiency.dispatch
        start, number = self.tick(note.host - launching), self.next()
        if note.node is None:
            self.forwards.setdefault(note.sequence, start)
            args = {**args, "Sequence number": note.sequence}
        span = self.span("cpu_op", name, start, start, thread, {"External id": number, **args})
        self._allocated()
        end = self.tick(note.host)
        self.end(span, end)
        first = start + (end - start) // 4  # then the launches
        begin = max(nanoseconds(note.end - plan.seconds), self.stream_ends.get(note.stream, 0), end)
        cuts = list(self._cuts(begin, max(begin, nanoseconds(note.end)), kernels))
        for at, (kernel, start, stop) in enumerate(cuts):
            calls = [first + (end - first) * i // len(cuts) for i in (at, at + 1)]
            self._kernel(kernel, start, stop, calls, thread, number, args, note.stream)

    def _described(self, key: tuple, plan) -> tuple[str, dict, list[Kernel]]:
        described = self.described.get(key)
        if described is None:
            args = {"Input Dims": [], "Input type": []}
            for mark in key[1:]:
                if isinstance(mark, str):  # keyword arguments follow
                    break
                shape = next(shapes_of((mark,)), None) if isinstance(mark, tuple) else None
                args["Input Dims"].append([] if shape is None else list(shape.size))
                args["Input type"].append("" if shape is None else
                                          CPP.get(shape.dtype, str(shape.dtype)))
            kernels = kernels_of(self.card, key, plan) if plan.kernels else []
            described = plan.name.replace(".", "::", 1), args, kernels
            self.described[key] = described
        return described

    def _cuts(self, start: int, end: int, kernels: list[Kernel]
              ) -> Iterator[tuple[Kernel, int, int]]:
        """Yield an operation's kernels with their start and end, in nanoseconds.

        Each kernel lasts at least as long as the shortest possible one.
        """
        least = nanoseconds(self.card.efficiency.kernel)
        least = least if least * len(kernels) <= end - start else 0
        rest, shares = end - start - least * len(kernels), 0.0
        for at, kernel in enumerate(kernels, 1):
            begin = start + least * (at - 1) + int(rest * shares)
            shares += kernel.share
            yield kernel, begin, end if at == len(kernels) else start + least * at + int(
                rest * shares)

    def _kernel(self, kernel: Kernel, start: int, end: int, calls: list[int], thread: int,
                operation: int, more: dict, stream: str = COMPUTE) -> None:
        """Add a kernel, the runtime call that launches it, and an arrow between them."""
        call = self.next()
        ids = {"External id": operation, "correlation": call}
        self.span("runtime", CALLS[kernel.kind], calls[0], calls[1], thread, ids)
        args = {**ids, "device": self.place.index, "context": 1, "stream": self.stream(stream)}
        if kernel.kind == KERNEL:
            args |= {"grid": [kernel.grid, 1, 1], "block": [kernel.block, 1, 1],
                     "blocks per SM": round(kernel.grid / self.card.sms, 4),
                     "warps per SM": round(kernel.grid * kernel.block / 32 / self.card.sms, 4),
                     "est. achieved occupancy %": round(occupancy(self.card, kernel), 2)}
            if "Group size" in more:
                args |= more
        else:
            args["bytes"] = math.prod(more["Input Dims"][0]) * SIZES.get(more["Input type"][0], 1)
        self.stream_ends[stream] = end
        self.span(kernel.kind, kernel.name, start, end, None, args, stream)
        self.event("s", "ac2g", "ac2g", calls[0], thread, id=call)
        self.event("f", "ac2g", "ac2g", start, None, stream, id=call, bp="e")

    def message(self, note: CommunicationNote) -> None:
        self._allocated()
        if note.end is None:  # it ends after the last step
            return
        thread = self._on(note.node)
        start, number = self.tick(note.host - self.card.efficiency.dispatch), self.next()
        end = self.tick(note.host)
        dtype = CPP.get(note.dtype, str(note.dtype))
        about = {"Collective name": note.name, "In msg nelems": note.sent,
                 "Out msg nelems": note.received, "Group size": len(note.ranks), "dtype": dtype,
                 "Process Group Ranks": str(note.ranks)}
        self.span("cpu_op", f"nccl:{note.name}", start, end, thread,
                  {"External id": number, "Input Dims": [[note.sent]], "Input type": [dtype],
                   **about})
        begin = max(nanoseconds(note.ready), self.stream_ends.get(note.stream, 0), end)
        if nanoseconds(note.end) <= begin:  # the tensor has already arrived
            return
        kernel = Kernel(nccl_kernel_name(note.name, note.dtype, note.tree), grid=note.channels,
                        block=512)
        self._kernel(kernel, begin, nanoseconds(note.end), [start + (end - start) // 4, end],
                     thread, number, about, note.stream)

    def memory(self, note: MemoryNote) -> None:
        if note.size > 0:
            self.pending.append(note)
        elif note.size:
            self._allocated()
            at = max(self.at, nanoseconds(note.ready))
            self._memory(note, at, RELEASES, self.levels.freed(note))

    def _memory(self, note: MemoryNote, at: int, thread: int, level: tuple[int, int]) -> None:
        self.event("i", "cpu_instant_event", "[memory]", at, thread, s="t", args={
            "Total Allocated": level[0], "Total Reserved": level[1], "Bytes": note.size,
            "Addr": self.levels.address(note), "Device Id": self.place.index, "Device Type": 1})

    def _allocated(self) -> None:
        for note in self.pending:
            self._memory(note, self.tick(note.host),
                         BACKWARD_THREAD if note.node else FORWARD_THREAD,
                         self.levels.allocated(note))
        self.pending.clear()

    def wait(self, note: WaitNote) -> None:
        self._allocated()
        thread, start = self._on(note.node), self.tick(note.start)
        self.span("runtime", "cudaDeviceSynchronize", start, self.tick(note.end), thread,
                  {"External id": 0, "correlation": self.next()})

    def edge(self, note: RangeNote) -> None:
        """Begin or end a range.

        TensorBoard's profiler plugin counts a user_annotation as CPU work even while the CPU waits,
        so the program's ranges have a category that it does not know.
        """
        self._allocated()
        self._on(None)
        if not note.begins:
            if self.open_ranges and self.open_ranges[-1]["name"].endswith(
                note.name):  # else it began before the trace
                self.end(self.open_ranges.pop(), self.tick(note.host))
            return
        at = self.tick(note.host)
        cat, name, args = "range", note.name, {"virtual": self.card.name}
        if note.kind == "step":
            cat, args["External id"] = "user_annotation", self.next()
        elif note.kind == "module":
            parent = next((span["args"]["Python id"] for span in reversed(self.open_ranges)
                           if "Python id" in span["args"]), None)
            cat, name = "python_function", f"nn.Module: {name}"
            args = {"Python id": self.next(), "Python parent id": parent,
                    "Python module id": int(name.rpartition("_")[2])}
        self.open_ranges.append(self.span(cat, name, at, at, FORWARD_THREAD, args))

    def _on(self, node: AutogradNode) -> int:
        """Return the thread that runs an autograd node, and open and close the spans around nodes.

        With a real GPU, autograd runs backward passes in a thread of its own.
        """
        if node != self.node:
            for span in reversed(self.node_spans):  # each ends a nanosecond after its content
                self.at += 1
                self.end(span, self.at)
            self.node, self.node_spans = node, []
            if node is not None:
                name, sequence = node
                at = self.at = self.at + 1
                self.node_spans = [
                    self.span("cpu_op", title, at, at, BACKWARD_THREAD,
                              {"External id": self.next(), "Sequence number": sequence})
                    for title in (f"autograd::engine::evaluate_function: {name}", name)]
                start = self.forwards.get(sequence)
                if start is not None:
                    self.event("s", "fwdbwd", "fwdbwd", start, FORWARD_THREAD, id=sequence)
                    self.event("f", "fwdbwd", "fwdbwd", at, BACKWARD_THREAD, id=sequence, bp="e")
        return FORWARD_THREAD if node is None else BACKWARD_THREAD

    READERS: ClassVar = {OperationNote: operation, CommunicationNote: message, MemoryNote: memory,
                         WaitNote: wait,
                         RangeNote: edge}

    def close(self) -> None:
        self._allocated()
        self._on(None)
        for span in reversed(self.open_ranges):
            self.at += 1
            self.end(span, self.at)


SIZES = {CPP[dtype]: dtype.itemsize for dtype in CPP if isinstance(dtype, torch.dtype)}
