"""Traces of virtual GPUs, read by the profiler's own parser and checked as Perfetto would."""

import json
import re
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch_tb_profiler.profiler.data import DistributedRunProfileData, RunProfileData
from torch_tb_profiler.profiler.loader import RunLoader
from torch_tb_profiler.profiler.run_generator import RunGenerator
from torch_tb_profiler.profiler.tensor_core import TC_Allowlist

from virtualgpu.core.cards import CARDS
from virtualgpu.core.rules.work import GemmShape
from virtualgpu.export import chrome_trace
from virtualgpu.export.kernel_names import gemm_name
from virtualgpu.export.profiler import StepProfiler
from virtualgpu.export.trace import CommunicationNote, RangeNote, RankPlacement, TraceRecorder

from .traced import GPT2, PROFILE, run

# The profiler's own parser, under today's pandas.
pytestmark = [pytest.mark.slow,
              pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")]

V100 = CARDS["v100-sxm2-16gb"]
PARAMETERS = 124_475_904  # of GPT-2 small, with a vocabulary of 50,304 entries
HERE = RankPlacement(rank=0, world=1, index=0, cards=1)


def parsed(text, worker="w"):
    """(what the profiler's tab finds in a trace, what it shows)."""
    data = RunProfileData.from_json(worker, None, json.loads(text))
    return data, RunGenerator(worker, None, data).generate_run_profile()


@pytest.fixture(scope="module")
def traced(dataset, tmp_path_factory):
    return run(dataset, tmp_path_factory.mktemp("traced"))


@pytest.fixture(scope="module")
def texts(traced):
    return [next((traced / "run_gpt2").glob(f"run_gpt2_gpu{rank}.*.pt.trace.json")).read_text()
            for rank in range(4)]


@pytest.fixture(scope="module")
def shown(texts):
    return parsed(texts[2])


@pytest.fixture(scope="module")
def steps(traced):
    """Milliseconds of each iteration, as the log has them."""
    return [float(found) for found in re.findall(
        r"elapsed time per iteration \(ms\): ([\d.]+)", (traced / "node1.txt").read_text())]


def test_the_gpu_summary_names_the_virtual_card(shown):
    _, profile = shown
    summary = {row["title"]: row["value"] for row in profile.gpu_summary}
    assert summary["Name"] == "Tesla V100-SXM2-16GB (virtual)"
    assert (summary["Memory"], summary["Compute Capability"]) == ("15.78 GB", "7.0")
    assert float(summary["GPU Utilization"].split()[0]) > 99
    assert summary["Kernel Time using Tensor Cores"] == "0.0 %"
    assert 0 < float(summary["Est. Achieved Occupancy"].split()[0]) < 100
    assert {view.name for view in profile.views} == {
        "overall", "operator", "kernel", "trace", "memory", "module"}


def test_a_step_is_as_long_as_in_the_log_and_half_of_it_is_communication(shown, steps):
    data, _ = shown
    assert data.steps_names == ["2", "3"]
    assert len(set(steps)) == 1  # to be watched costs no virtual time
    average = data.avg_costs.costs
    kernel, communication, total = average[0], average[3], average[8]
    assert total / 1000 == pytest.approx(steps[0], rel=1e-3)
    assert 0.4 < communication / total < 0.6
    assert kernel + communication == pytest.approx(total, rel=0.01)


def test_the_recommendations_are_mixed_precision_and_less_communication(shown):
    data, _ = shown
    communication, precision = data.recommendations
    assert "high time cost on communication" in communication
    assert "Gradient Accumulation" in communication and "increase the batch size" in communication
    assert "Automatic Mixed Precision" in precision


def test_memory_climbs_in_each_forward_pass_and_falls_in_each_backward(shown, traced):
    _, profile = shown
    rows = profile.get_memory_curve(memory_metric="M")["rows"]["GPU0"]
    step = profile.overview["performance"][0]["value"] / 1000
    log = (traced / "node0.txt").read_text()
    peak = float(re.search(r"max allocated: ([\d.]+)", log)[1])
    for number in (0, 1):
        during = [(time - number * step, used) for time, used, _ in rows
                  if number * step <= time < (number + 1) * step]
        low = during[-1][1]
        # MiB; the run's peak is of another step, which may leave other blocks unsplit.
        assert peak - 2 < max(used for _, used in during) <= peak + 0.01
        # Weights, gradients, and Adam's two moments, in fp32.
        assert low == pytest.approx(16 * PARAMETERS / 2**20, rel=0.005)
        top = max(during, key=lambda point: point[1])[0]
        # Forward and backward take two fifths of this step: halfway up, halfway down.
        half = [time for time, used in during if used > (peak + low) / 2]
        assert 0.05 * step < half[0] < top < half[-1] < 0.5 * step
        assert 0.2 * step < half[-1] - half[0]
    operators = {row[0] for row in profile.get_memory_stats()["rows"]["GPU0"]}
    assert {"aten::mm", "aten::bmm", "virtualgpu::dropout"} <= operators


def test_the_distributed_view_has_every_rank(texts):
    workers = [DistributedRunProfileData(parsed(text, f"run_gpu{rank}")[0])
               for rank, text in enumerate(texts)]
    view = RunLoader("run", "", None)._process_distributed_profiles(workers, None)
    assert list(view.steps_to_overlap["data"]["all"]) == [f"run_gpu{rank}" for rank in range(4)]
    assert [next(iter(node.values())) for node in view.gpu_info["data"].values()] == [
        {f"GPU{rank % 2}": {"Name": "Tesla V100-SXM2-16GB (virtual)", "Memory": "15.78 GB",
                            "Memory Raw": V100.memory, "Compute Capability": "7.0"}}
        for rank in range(4)]
    (row,) = view.comm_ops["data"]["run_gpu3"]["rows"]
    assert row[0] == "nccl:all_reduce"
    parameters = 12 * (12 * 768**2 + 13 * 768) + 768 * (50304 + 1024 + 2)
    assert row[2] == pytest.approx(2 * 4 * parameters, rel=1e-5)  # fp32, two steps


def spans(text):
    """Integer nanoseconds (start, end, event) of each row, parents first."""
    rows = defaultdict(list)
    for event in json.loads(text)["traceEvents"]:
        assert event["ph"] in "XMiCsf" and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            start = round(1000 * event["ts"])
            rows[event["pid"], event["tid"]].append(
                (start, start + round(1000 * event["dur"]), event))
    return {row: sorted(found, key=lambda one: (one[0], -one[1])) for row, found in rows.items()}


def test_events_nest_and_kernels_of_a_stream_do_not_overlap(texts):
    for (pid, _), row in spans(texts[1]).items():
        around = []
        for start, end, event in row:
            while around and around[-1] <= start:
                around.pop()
            assert not around or (end <= around[-1] and pid != 1), event
            around.append(end)


def test_every_kernel_follows_its_call_and_every_arrow_points_forward(texts):
    events = json.loads(texts[0])["traceEvents"]
    calls = {event["args"]["correlation"]: event for event in events
             if event.get("cat") == "runtime"}
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy",
                                                                 "gpu_memset")]
    assert len(kernels) > 1000
    for kernel in kernels:
        call = calls[kernel["args"]["correlation"]]
        assert call["args"]["External id"] == kernel["args"]["External id"]
        assert call["ts"] + call["dur"] <= kernel["ts"] + 1e-6
    arrows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["cat"], event["id"]][event["ph"]] = event["ts"]
    assert {"ac2g", "fwdbwd"} == {cat for cat, _ in arrows}
    assert all(ends["s"] < ends["f"] for ends in arrows.values())


def test_everything_says_that_it_is_virtual(texts):
    trace = json.loads(texts[3])
    assert trace["virtualGpu"]["card"] == "v100-sxm2-16gb"
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 4}
    assert [card["numSms"] for card in trace["deviceProperties"]] == [80, 80]
    names = {event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "process_name"}
    assert names == {"rank 3: virtual v100-sxm2-16gb",
                     "rank 3: host of a virtual v100-sxm2-16gb"}
    assert any(event["name"] == "virtual v100-sxm2-16gb: times and memory are modeled"
               for event in trace["traceEvents"])


def test_a_pipeline_in_fp16_uses_tensor_cores_and_waits_between_forward_and_backward(
        train, dataset, tmp_path):
    flags = GPT2.replace("--num-layers 12", "--num-layers 4") + PROFILE + dataset.flags + (
        "--fp16 --pipeline-model-parallel-size 2 --global-batch-size 8 --train-iters 4 "
        f"--tensorboard-dir {tmp_path} --timeline {tmp_path}")
    run = train(flags, 2, base="")
    text = next((tmp_path / "run_gpt2").glob("run_gpt2_gpu0.*")).read_text()
    data, _ = parsed(text)
    assert 0.2 < data.tc_used_ratio < 0.8
    assert "low utilization" in data.recommendations[0]
    rows = spans(text)
    ranges = {event["name"]: (start, end) for start, end, event in rows[1000, 1000]
              if event["cat"] == "range"}
    idle = ranges["forward-compute F1"][1], ranges["backward-compute B0"][0]
    assert idle[1] - idle[0] > 5e6
    kernels = [(start, end) for start, end, event in rows[0, 7]]
    assert not any(start >= idle[0] + 1e5 and end <= idle[1] for start, end in kernels)
    assert any(event["name"].startswith("ncclDevKernel_SendRecv")
               for row in rows.values() for _, _, event in row)
    timeline = json.loads((tmp_path / "timeline.json").read_text())
    assert "rank 1: stage 1, dp 0, tp 0 (virtual v100-sxm2-16gb)" in {
        event["args"].get("name") for event in timeline["traceEvents"]}
    assert "bubble" in run.out and (tmp_path / "timeline.svg").exists()


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_the_profiler_knows_tensor_core_kernels_by_name(card):
    for dtype in card.tflops:
        if dtype == "tf32":
            continue
        for aligned in (16, 2):
            name = gemm_name(card, GemmShape(dtype, 1, 1024, 512, 768, aligned), "128x128", "tn")
            assert (name in TC_Allowlist) == (dtype != "fp32"), name


def test_a_rank_that_is_early_waits_in_its_collective():
    """Rank 1 comes 3 ms after rank 0; the message takes 1 ms."""
    workers = []
    for rank, ready in ((0, 1e-3), (1, 4e-3)):
        note = CommunicationNote("all_reduce", "virtual 0,1", [0, 1], torch.float32, 256, 256,
                                 False, 2,
                       ready, None, ready, end=5e-3)
        notes = [RangeNote("step", "ProfilerStep#2", True, 0.0), note,
                 RangeNote("step", "ProfilerStep#2", False, 6e-3)]
        text = chrome_trace.text(V100, RankPlacement(rank, 2, rank, 2), notes)
        workers.append(DistributedRunProfileData(parsed(text, f"w_gpu{rank}")[0]))
    view = RunLoader("run", "", None)._process_distributed_profiles(workers, None)
    early, late = (view.steps_to_wait["data"]["2"][f"w_gpu{rank}"] for rank in (0, 1))
    assert late[0] == pytest.approx(1000, abs=10) and late[1] == pytest.approx(0, abs=10)
    assert early[0] == pytest.approx(1000, abs=10) and early[1] == pytest.approx(3000, abs=10)


def test_to_be_recorded_changes_neither_time_nor_memory(virtual_device):
    gpu = virtual_device.gpu
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to("meta")

    def step():
        before, gpu.memory.peak = gpu.now(), gpu.memory.live
        net(torch.empty(64, 512, device="meta")).sum().backward()
        for parameter in net.parameters():
            parameter.grad = None
        return gpu.now() - before, gpu.memory.peak, gpu.memory.live

    first = step()
    recorder = TraceRecorder(gpu)
    recorder.start()
    watched = step()
    recorder.stop()
    assert watched == pytest.approx(first, rel=1e-9)
    assert len(recorder.notes) > 20 and gpu.recorder is None
    count = len(recorder.notes)
    assert step() == pytest.approx(first, rel=1e-9) and len(recorder.notes) == count


def test_the_last_kernel_of_a_trace_ends_with_the_card(virtual_device):
    gpu = virtual_device.gpu
    recorder = TraceRecorder(gpu)
    recorder.start()
    a = torch.empty(1024, 1024, device="meta")
    b = (a @ a.t()).softmax(-1)
    b.add_(1)
    recorder.stop()
    kernels = [event for event in json.loads(chrome_trace.text(V100, HERE, recorder.notes))[
        "traceEvents"] if event.get("cat") == "kernel"]
    assert [event["name"].split("<")[0] for event in kernels] == [
        "volta_sgemm_128x128_tn", "void softmax_warp_forward",
        "void at::native::vectorized_elementwise_kernel"]
    assert kernels[-1]["ts"] + kernels[-1]["dur"] == pytest.approx(1e6 * gpu.now(), abs=2e-3)
    assert sum(event["dur"] for event in kernels) == pytest.approx(
        1e6 * sum(gpu.busy[name] for name in ("aten.mm", "aten._softmax", "aten.add_")), abs=5e-3)


@pytest.mark.parametrize("steps, written", [(1, []), (2, []), (3, ["2"]), (4, ["2", "3"]),
                                            (9, ["2", "3"])])
def test_the_third_and_fourth_step_are_watched(virtual_device, tmp_path, steps, written):
    profile = StepProfiler(virtual_device.gpu, tmp_path / "run_x", "run_x_gpu0", HERE)
    profile.start()
    for _ in range(steps):
        torch.empty(64, device="meta").add_(1)
        profile.step()
    profile.stop()
    files = list(tmp_path.glob("run_x/*"))
    assert len(files) == bool(written)
    for file in files:
        assert re.fullmatch(r"run_x_gpu0\.\d+\.pt\.trace\.json", file.name)
        assert parsed(file.read_text())[0].steps_names == written
