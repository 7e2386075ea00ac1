"""A Chakra execution trace of one rank, in the JSON form of the schema's protocol buffers.

Chakra (Sridharan et al. 2023) is MLCommons' format for what a rank computes and communicates;
simulators such as ASTRA-sim read it. The schema is et_def.proto; its traces call themselves version
0.0.4. Field names are the schema's, so `google.protobuf.json_format.ParseDict` reads each node.

A node depends on those that wrote the storages it reads (data_deps), and on the one before it on
its stream (ctrl_deps). Storages, not tensors: operations on different views of one storage depend
on each other here, although they need not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from virtualgpu.core.card import Card
from virtualgpu.export.trace import Message, Operation, Place

VERSION = "0.0.4"
COMPUTE, COLLECTIVE, SEND, RECEIVE = (
    "COMP_NODE", "COMM_COLL_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE")
# The schema's CollectiveCommType.
KINDS = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5,
         "all_to_all": 6, "reduce_scatter": 7, "barrier": 9}


class Graph:
    """Nodes so far. writers: the node that wrote each storage; last: of each stream."""

    def __init__(self) -> None:
        self.nodes: list[dict] = []
        self.writers: dict[int, int] = {}
        self.last: dict[str, int] = {}
        self.groups: dict[str, list[int]] = {}  # ranks by name

    def node(self, note: Operation | Message, kind: str, name: str, start: float, end: float,
             attributes: list[dict]) -> None:
        """Add a node after those that it depends on."""
        number = len(self.nodes) + 1
        before = self.last.get(note.stream)
        self.nodes.append({
            "id": number, "name": name, "type": kind,
            "ctrl_deps": [] if before is None else [before],
            "data_deps": sorted({self.writers[key] for key in (*note.reads, *note.writes)
                                 if key in self.writers}),
            "start_time_micros": round(1e6 * start),
            "duration_micros": round(1e6 * (end - start)),
            "attr": [attribute("is_cpu_op", False), attribute("stream", note.stream),
                     attribute("duration_nanos", round(1e9 * (end - start))), *attributes]})
        self.last[note.stream] = number
        self.writers.update(dict.fromkeys(note.writes, number))

    def operation(self, note: Operation) -> None:
        plan = note.plan
        if not plan.kernels:
            if plan.results is not None:  # new memory, perhaps where other memory was
                for key in note.writes:
                    self.writers.pop(key, None)
            return
        for key in note.writes if plan.results is not None else ():
            if key not in note.reads:
                self.writers.pop(key, None)
        work, attributes = plan.work, []
        if work is not None:
            flops = work.flops + (work.product.flops if work.product else 0)
            attributes = [attribute("num_ops", flops), attribute("tensor_size", work.bytes)]
        self.node(note, COMPUTE, plan.name.replace(".", "::", 1), note.end - plan.seconds, note.end,
                  attributes)

    def message(self, note: Message) -> None:
        if note.end is None:  # never over
            return
        group = ",".join(map(str, note.ranks))
        self.groups[group] = note.ranks
        size = attribute("comm_size", note.sent * note.dtype.itemsize)
        kind, *ends = note.name.replace("->", " ").replace("<-", " ").split()
        if kind in ("send", "recv"):
            mine, peer = (note.ranks[int(end)] for end in ends)
            source, target = (mine, peer) if kind == "send" else (peer, mine)
            self.node(note, SEND if kind == "send" else RECEIVE, note.name, note.ready, note.end,
                      [size, attribute("comm_src", source), attribute("comm_dst", target),
                       attribute("comm_tag", 0), attribute("pg_name", group)])
            return
        self.node(note, COLLECTIVE, note.name, note.ready, note.end,
                  [attribute("comm_type", KINDS[kind]), size, attribute("pg_name", group)])


def attribute(name: str, value: bool | int | str) -> dict:
    """An AttributeProto."""
    kind = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
    return {"name": name, kind: value}


def text(card: Card, place: Place, notes: Iterable) -> str:
    """Return the whole file: the schema's GlobalMetadata, and its Nodes.

    Args:
        card: the GPU.
        place: the rank's.
        notes: of a recorder.
    """
    graph = Graph()
    for note in notes:
        if isinstance(note, Operation):
            graph.operation(note)
        elif isinstance(note, Message):
            graph.message(note)
    about = [attribute("rank", place.rank), attribute("world_size", place.world),
             attribute("gpu", f"virtual {card.name}: modeled, not measured"),
             *(attribute(f"process_group {name}", json.dumps(ranks))
               for name, ranks in graph.groups.items())]
    return json.dumps({"metadata": {"version": VERSION, "attr": about}, "nodes": graph.nodes},
                      separators=(",", ":"))
