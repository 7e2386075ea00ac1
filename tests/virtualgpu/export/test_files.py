"""The files of --trace: a Chakra trace that the schema's own messages read, and a memory trace."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from google.protobuf import json_format
from torch import nn

from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export import chakra, chrome_trace, memory_timeline
from virtualgpu.export.files import TraceFiles
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import measure
from virtualgpu.export.saving import save
from virtualgpu.export.trace import CommunicationNote, RankPlacement, TraceRecorder

from .et_def import messages

A100 = CARDS["a100-80gb"]
HERE = RankPlacement(rank=0, world=1, index=0, cards=1)
ENDS = ["pt.trace.json", "chakra.json", "memory.json", "memory.svg"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """({ending: text} of a training run's files, what was measured)."""
    folder = tmp_path_factory.mktemp("traces") / "new"
    with VirtualGpu(A100) as gpu:
        ledger = Ledger(gpu)
        traced = TraceFiles(folder, ledger, HERE)
        ledger.start()
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to("meta")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(3):
            model(torch.empty(64, 256, device="meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ledger.stop()
        files = traced.write()
    assert [file.name for file in files] == [f"rank0.{end}" for end in ENDS]
    assert sorted(folder.iterdir()) == sorted(files)  # nothing unfinished
    return dict(zip(ENDS, (file.read_text() for file in files), strict=True)), measure(ledger)


def nodes_of(text):
    """Nodes as the schema's messages, by identity."""
    kinds, data = messages(), json.loads(text)
    json_format.ParseDict(data["metadata"], kinds["GlobalMetadata"]())
    nodes = [json_format.ParseDict(node, kinds["Node"]()) for node in data["nodes"]]
    return {node.id: node for node in nodes}


def test_chakra_s_messages_read_every_node_and_dependencies_point_backward(written):
    nodes = nodes_of(written[0]["chakra.json"])
    assert json.loads(written[0]["chakra.json"])["metadata"]["version"] == "0.0.4"
    assert len(nodes) > 100 and 0 not in nodes
    for node in nodes.values():
        for before in (*node.data_deps, *node.ctrl_deps):
            assert before < node.id and before in nodes
            assert nodes[before].start_time_micros <= node.start_time_micros


def test_chakra_nodes_depend_on_those_that_wrote_what_they_read():
    with VirtualGpu(A100) as gpu:
        recorder = TraceRecorder(gpu)
        recorder.start()
        a = torch.ones(64, 64, device="meta")
        b = torch.zeros(64, 64, device="meta")
        c = a @ b
        a.view(-1).add_(1)  # another tensor on the same storage
        d = a + c
        del d
        torch.empty(64, 64, device="meta").add_(1)  # perhaps where d was
        recorder.stop()
    nodes = nodes_of(chakra.text(A100, HERE, recorder.notes))
    results = {number: (node.name, list(node.data_deps)) for number, node in nodes.items()}
    assert results == {1: ("aten::ones", []), 2: ("aten::zeros", []), 3: ("aten::mm", [1, 2]),
                       4: ("aten::add_", [1]), 5: ("aten::add", [3, 4]), 6: ("aten::add_", [])}
    assert [list(node.ctrl_deps) for node in nodes.values()] == [[], [1], [2], [3], [4], [5]]


def test_collectives_and_transfers_are_communication_nodes():
    def note(name, stream, start):
        return CommunicationNote(name, stream, [4, 6], torch.bfloat16, 256, 256, False, 2, start,
                                 None, start,
                       end=start + 1e-3, reads=(7,), writes=(7,))
    nodes = nodes_of(chakra.text(A100, HERE, [
        note("all_reduce", "virtual 4,6", 0.0), note("send 0->1", "to 1", 1.0),
        note("recv 1<-0", "from 0", 2.0)]))
    attributes = [{one.name: one.int64_val or one.string_val for one in node.attr}
                  for node in nodes.values()]
    assert [node.type for node in nodes.values()] == [7, 5, 6]
    assert [one["comm_size"] for one in attributes] == [512] * 3
    assert [(one["comm_src"], one["comm_dst"]) for one in attributes[1:]] == [(4, 6), (4, 6)]
    assert [list(node.data_deps) for node in nodes.values()] == [[], [1], [2]]


def test_the_memory_timeline_s_highest_point_is_the_peak_with_its_categories(written):
    data, memory = json.loads(written[0]["memory.json"]), written[1]["memory"]
    totals = [sum(row) for row in zip(*data["bytes"].values(), strict=True)]
    highest = max(range(len(totals)), key=totals.__getitem__)
    assert data["seconds"] == sorted(data["seconds"])
    assert min(min(row) for row in data["bytes"].values()) >= 0
    assert totals[highest] == memory["peak_allocated_bytes"]
    assert {name: row[highest] for name, row in data["bytes"].items()} == memory["at_peak"]


def test_the_picture_stands_alone(written):
    svg = ElementTree.fromstring(written[0]["memory.svg"])
    kinds = [element.tag.rpartition("}")[2] for element in svg.iter()]
    assert kinds.count("polygon") == len(memory_timeline.CATEGORIES)
    assert not any("href" in element.attrib for element in svg.iter())
    texts = {element.text for element in svg.iter()}
    assert {"parameters", "optimizer state"} <= texts
    assert any(text and "modeled memory" in text for text in texts)


def test_pictures_keep_the_highest_points():
    times = [float(time) for time in range(10_001)]
    sizes = {"parameters": [time % 97 for time in range(10_001)]}
    kept, thinned = memory_timeline.thinned(times, sizes, 500)
    assert len(kept) <= 500
    assert max(thinned["parameters"]) == 96


def test_a_recorder_stops_when_it_has_enough():
    with VirtualGpu(A100) as gpu:
        recorder = TraceRecorder(gpu, most=5)
        recorder.start()
        for _ in range(9):
            torch.empty(4, device="meta").add_(1)
        assert recorder.full and gpu.recorder is None
        recorder.stop()


@pytest.mark.parametrize("happens", [
    lambda gpu, recorder: gpu.hold(torch.empty_strided((4,), (1,), device="meta")),
    lambda gpu, recorder: recorder.edge("range", "name", True),
    lambda gpu, recorder: recorder.message("all_reduce", "nccl", [0], [], 4, 0.0, channels=1)])
def test_whatever_happens_counts_for_the_limit(happens):
    with VirtualGpu(A100) as gpu:
        recorder = TraceRecorder(gpu, most=3)
        recorder.start()
        for _ in range(9):
            happens(gpu, recorder)
    assert len(recorder.notes) == 3 and gpu.recorder is None


def test_a_full_trace_ends_its_memory_timeline(tmp_path):
    with VirtualGpu(A100) as gpu:
        ledger = Ledger(gpu)
        traced = TraceFiles(tmp_path, ledger, HERE)
        traced.recorder.most = 5
        ledger.start()
        kept = [torch.ones(2**18, device="meta") for _ in range(9)]
        assert traced.recorder.full and ledger.blocks.history is None
        del kept
        ledger.stop()
        traced.write()
    memory = json.loads((tmp_path / "rank0.memory.json").read_text())
    assert 2 <= sum(row[-1] for row in memory["bytes"].values()) / 2**20 <= 3


def test_operations_that_return_numbers_are_traced():
    """Fused attention returns the longest sequence's length beside its tensors."""
    with VirtualGpu(A100) as gpu:
        recorder = TraceRecorder(gpu)
        recorder.start()
        x = torch.empty(1, 4, 64, 64, dtype=torch.bfloat16, device="meta")
        torch.ops.aten._scaled_dot_product_flash_attention(x, x, x)
        recorder.stop()
    events = json.loads(chrome_trace.text(A100, HERE, recorder.notes))["traceEvents"]
    assert [one["args"]["External id"] for one in events if one.get("cat") == "kernel"]


def test_the_chrome_trace_has_every_kernel_on_its_stream(written):
    events = json.loads(written[0]["pt.trace.json"])["traceEvents"]
    kernels = [event for event in events
               if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    nodes = nodes_of(written[0]["chakra.json"])
    assert len(kernels) >= sum(node.type == 4 for node in nodes.values()) > 100


def test_a_file_has_its_permissions_before_it_has_its_name(tmp_path, monkeypatch):
    """Another process may start the program as soon as it exists."""
    modes, replace = [], Path.replace

    def watched(path, target):
        modes.append(path.stat().st_mode & 0o777)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    save(tmp_path / "program", "#!/bin/sh\n", 0o755)
    assert modes == [0o755]
