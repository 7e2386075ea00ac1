"""A Chakra execution trace of one rank, in the JSON form of the schema's protocol buffers.

Chakra (Sridharan et al. 2023) is MLCommons' format for a rank's computation and communication,
which simulators such as ASTRA-sim read. The schema is et_def.proto; its traces have version 0.0.4.
Field names are the schema's, so `google.protobuf.json_format.ParseDict` reads each node.

A node depends on the nodes that wrote the storages it reads (data_deps) and on the previous node of
its stream (ctrl_deps). Dependencies are between storages, not tensors: operations on different
views of one storage depend on each other here, although they need not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from virtualgpu.core.card import Card
from virtualgpu.export.trace import CommunicationNote, OperationNote, RankPlacement

VERSION = "0.0.4"
COMPUTE, COLLECTIVE, SEND, RECEIVE = (
    "COMP_NODE", "COMM_COLL_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE")
# The schema's CollectiveCommType.
KINDS = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5,
         "all_to_all": 6, "reduce_scatter": 7, "barrier": 9}


class ChakraGraph:
    """The nodes of a trace.

    Attributes:
        nodes: nodes so far, in the schema's form.
        writers: the node that last wrote each storage.
        last: the last node of each stream.
        groups: ranks of each process group, by name.
    """

    def __init__(self) -> None:
        self.nodes: list[dict] = []
        self.writers: dict[int, int] = {}
        self.last: dict[str, int] = {}
        self.groups: dict[str, list[int]] = {}

    def node(self, note: OperationNote | CommunicationNote, kind: str, name: str, start: float,
             end: float,
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

    def operation(self, note: OperationNote) -> None:
        plan = note.plan
        if not plan.kernels:
            if plan.results is not None:  # new memory, perhaps at the address of freed memory
                for key in note.writes:
                    self.writers.pop(key, None)
            return
        for key in note.writes if plan.results is not None else ():
            if key not in note.reads:
                self.writers.pop(key, None)
        work, attributes = plan.work, []
        if work is not None:
            flops = work.flops + (work.gemm.flops if work.gemm else 0)
            attributes = [attribute("num_ops", flops), attribute("tensor_size", work.bytes)]
        self.node(note, COMPUTE, plan.name.replace(".", "::", 1), note.end - plan.seconds, note.end,
                  attributes)

    def message(self, note: CommunicationNote) -> None:
        if note.end is None:  # it never completed
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
    """Return an AttributeProto of the schema."""
    kind = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
    return {"name": name, kind: value}


def text(card: Card, place: RankPlacement, notes: Iterable) -> str:
    """Return the file: the schema's GlobalMetadata and Nodes, as JSON.

    Args:
        card: the GPU model.
        place: the rank and its GPU.
        notes: notes of a TraceRecorder.
    """
    graph = ChakraGraph()
    for note in notes:
        if isinstance(note, OperationNote):
            graph.operation(note)
        elif isinstance(note, CommunicationNote):
            graph.message(note)
    about = [attribute("rank", place.rank), attribute("world_size", place.world),
             attribute("gpu", f"virtual {card.name}: modeled, not measured"),
             *(attribute(f"process_group {name}", json.dumps(ranks))
               for name, ranks in graph.groups.items())]
    return json.dumps({"metadata": {"version": VERSION, "attr": about}, "nodes": graph.nodes},
                      separators=(",", ":"))
